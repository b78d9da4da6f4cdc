"""What every run has, simulated or real: app, folder, checkpoints, ledger."""
