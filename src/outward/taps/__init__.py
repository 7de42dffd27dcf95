"""Taps: any model -> a stream of attention calls, without changing a bit of what it returns.

capture.py      capture(model): the context manager, and what it adds to a model for the duration
interface.py    tier 1: transformers' attention interface
functions.py    tiers 2 and 3: torch's attention functions; a softmax followed by a product
torch_call.py   what tiers 2 and 3 saw, in our words; transformers_call.py: what tier 1 saw
layouts.py      from what a tier saw to (batch, head, token, dim)
kernels.py      a fused kernel's own log-sum-exp
crossing.py     whether keys come from other tokens than queries
coverage.py     every attention module of the model: captured, or refused and why
proof.py        the tap proves itself: same output, and y again from q, k, v in float64
"""
