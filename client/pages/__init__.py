"""The owner's pages: what left this site, what is left of its budgets, and whether it takes part."""
