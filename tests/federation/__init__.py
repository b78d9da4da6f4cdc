"""Tests of whole federations: real processes, real sockets, mutual TLS."""
