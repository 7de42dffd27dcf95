"""The probe: a model, batches and measures -> what a run keeps.

loop.py      the one loop: batches in, the tallies of a chunk out
tally.py     from the numbers of every token to accumulators per layer
chunks.py    a chunk as bytes: small, exact, no pickle
tables.py    chunks -> the tables and arrays of a run
"""
