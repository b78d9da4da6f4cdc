"""The processes executor: groups of clients on worker processes of this machine."""
