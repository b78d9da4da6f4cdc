"""Federated algorithms: pure maths on named arrays, and one adapter to Flower's Strategy."""
