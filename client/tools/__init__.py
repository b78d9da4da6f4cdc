"""What an owner does without a server: enrol, examine, measure, look."""
