"""Accounting: what was released, and the epsilon that it comes to."""
