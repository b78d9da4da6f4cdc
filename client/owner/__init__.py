"""The data owner's part of the client: policy, budget, ledger, identity."""
