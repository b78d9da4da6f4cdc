"""Compression of what travels: the params on their way out, the clients' changes on their way back.

    terms.py      which codecs, said to clients with every instruction
    codecs.py     what a codec is, and all of them by name
    numbers.py    fewer bits a value: fp16, bf16, 8 and 4 bit integers
    sparse.py     fewer values: the largest ones, or some at random
    low_rank.py   matrices as products of thin ones
    packet.py     params as one row of values, and a row as bytes
    grid.py       the server's half: a Flower Grid over another one

The clients' half is `meadow.compression.client`.
"""
