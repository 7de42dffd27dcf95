"""What is measured of a call: pure functions, tensors in, numbers per head and token out.

weights.py   single attention weights (own, first, previous key) from the log-sum-exp
bias.py      how much attention hands each token back to itself, and why
optional.py  what is asked for by name, at a price: entropy, orthogonal similarity
"""
