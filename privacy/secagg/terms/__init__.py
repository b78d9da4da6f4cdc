"""The messages between a server and its clients in a secure round."""
