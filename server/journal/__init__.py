"""The journal: the server's durable state, table by table."""
