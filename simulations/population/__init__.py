"""The simulated clients of a run: who they are, and what each keeps."""
