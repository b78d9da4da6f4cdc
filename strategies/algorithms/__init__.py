"""Federated algorithms: pure maths on named arrays, a file for each paper."""
