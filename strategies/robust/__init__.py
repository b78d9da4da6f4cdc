"""Robust aggregation: what replaces the mean where some clients may be adversaries.

rows.py         a round's updates as the rows of a matrix, read block by block
geometry.py     their inner products: all that most rules look at
mixing.py       pre-aggregations: clipping, adaptive clipping, NNM, bucketing
selection.py    Krum, multi-Krum, Bulyan's selection, MDA
centres.py      the mean, geometric median, centred clipping, FLTrust
coordinates.py  the median, the trimmed mean and Bulyan's second step, value by value
rules.py        all of them by name, and how many clients each needs
aggregator.py   runs a rule over a round's updates
"""
