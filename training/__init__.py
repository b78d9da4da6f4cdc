"""What a client does with its data, without a network."""
