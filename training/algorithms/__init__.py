"""The clients' halves of algorithms that ask for more than training."""
