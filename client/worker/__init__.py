"""The training process: an installed app at work, behind a pipe to the agent."""
