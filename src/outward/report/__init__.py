"""Reports: a run -> numbers per layer, a reading in words, a table in the terminal. No torch.

summary.py   what a run says, as one JSON document
reading.py   what it means, in sentences made from the numbers
terminal.py  the table per layer
"""
