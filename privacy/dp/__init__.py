"""Differential privacy of a run: mechanisms, the events that they release, and their accounting.

event        the mathematical description of one round's release
mechanism    clipping on the clients, noise on the server; it returns its event
correlation  the correlation of the rounds' noise, if there is any
accountant   computes epsilon from events
plan         defines sampler, clipping, noise and event of a run in one place
"""
