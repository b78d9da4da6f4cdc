"""The same work done by other simulators: programs that run in virtual environments of their own.

Run as files (`harness.peers.measure` does); only `workloads` is also imported by Meadow's own.
"""
