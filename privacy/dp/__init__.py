"""Differential privacy of a run: mechanisms, the events they release, and what those add up to.

event        what one round released, as mathematics
mechanism    clipping on the clients, noise on the server; it returns its event
correlation  how the noise of rounds hangs together, if it does
accountant   events to epsilon
plan         binds sampler, clipping, noise and event of a run, so that they cannot disagree
"""
