"""Run folders, followed into the stores of experiment trackers: MLflow and Weights & Biases."""
