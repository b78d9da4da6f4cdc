"""The client: an agent that its data's owner controls, and a training process kept warm."""
