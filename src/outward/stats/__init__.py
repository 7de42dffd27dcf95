"""Accumulators: `empty`, `of`, `merge`, `value`. They know nothing of attention.

moments.py     count, mean, spread, least and greatest of cells of numbers
histogram.py   fixed bins, so that parts merge exactly; quantiles from them
binning.py     the bin of each number of a tensor; the only one that needs torch
bootstrap.py   intervals over documents, and trends over depth with theirs
"""
