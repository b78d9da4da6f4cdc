"""The vectorized executor: many clients in tensors with a leading client axis."""
