"""The clients' halves of algorithms, where clients do more than train."""
