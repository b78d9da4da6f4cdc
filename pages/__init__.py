"""Pages for browsers on the same machine, and what signs a browser in; whose pages they are is elsewhere."""
