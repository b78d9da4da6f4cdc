"""Plain Flower apps at work: what their server sides send, wait for and return."""
