"""One round of training on several processes, each with a device of its own."""
