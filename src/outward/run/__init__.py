"""What a user holds: a run, one head of it, runs side by side.

run.py          Run: DataFrames, a document, a reading; load
head.py         Head: one head, as a notebook shows it
comparison.py   Comparison: runs side by side; compare
"""

from outward.run.comparison import Comparison as Comparison
from outward.run.comparison import compare as compare
from outward.run.head import Head as Head
from outward.run.run import Run as Run
from outward.run.run import load as load
