"""The journal: what the server must not forget, table by table."""
