"""What an operator calls on the server's machine, beside a daemon or without one."""
