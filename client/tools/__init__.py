"""The owner's tools: enrol, diagnose, measure, and show the status."""
