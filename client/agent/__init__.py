"""The agent: the device's network process, from the connection to the reply's delivery."""
