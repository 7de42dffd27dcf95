"""The mathematics: tensors in, tensors out. Imports torch and nothing of ours from other rooms.

reference.py    the specification: every form, plain, as one would write it from the papers
standard.py     softmax attention by torch's fused kernels
projection.py   the arithmetic of taking a direction out, and its gradient
exclusive.py    exclude_self and exclusive_attention, the fast ones
forms.py        the other forms, one function each
modules.py      a layer for each form; strengths; optimizer groups
multihead.py    the drop-in for nn.MultiheadAttention
cache.py        keys and values kept for decoding
masks.py        causal, window, document, padding
inputs.py       what every form accepts, and which key is a token's own
"""
