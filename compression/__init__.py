"""Compression of messages: of the params that the server sends, and of the clients' deltas.

    terms.py      which codecs a run uses; sent to clients with every instruction
    codecs.py     what a codec is, and all of them by name
    numbers.py    fewer bits a value: fp16, bf16, 8 and 4 bit integers
    sparse.py     fewer values: the largest, or a random selection
    low_rank.py   matrices as products of two thin matrices
    packet.py     converts params to one row of values, and a row to bytes
    grid.py       the server's half: a Grid that wraps another Flower Grid

The clients' half is `meadow.compression.client`.
"""
