"""What the data's owner decides and keeps: policy, budget, ledger, identity."""
