"""What travels: messages, blobs of tensors, and the identities of both ends."""
