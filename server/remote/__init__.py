"""A server seen by its administrator, over the network: the connection, and what runs ask of it."""
