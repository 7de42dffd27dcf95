"""Attention layers, one for each form. (The drop-in for `nn.MultiheadAttention`: multihead.py.)"""

import inspect
import math
from abc import abstractmethod
from contextlib import nullcontext
from functools import reduce
from operator import and_
from typing import Any, Literal, TypedDict, Unpack, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from outward.attention.cache import KVCache
from outward.attention.exclusive import exclusive_attention
from outward.attention.forms import (
    gated_attention,
    gated_exclusive_attention,
    mean_direction_attention,
    no_self_attention,
    random_direction_attention,
)
from outward.attention.inputs import Mask, SelfKey, looks_at_values
from outward.attention.masks import document_mask, padding_mask, window_mask
from outward.attention.projection import Impl
from outward.attention.standard import standard_attention

By = Literal["tanh", "sigmoid", "raw"]
Hidden = Float[Tensor, "batch token width"]
Heads = Float[Tensor, "batch head token dim"]
KVHeads = Float[Tensor, "batch kv_head key dim"]


class Seen(TypedDict):
    """Who sees whom in one call: options of every form."""

    causal: bool
    mask: Mask | None
    self_key: SelfKey | None
    dropout: float


class Options(TypedDict, total=False):
    """Options of every attention layer; see `Attention`."""

    num_kv_heads: int | None
    head_dim: int | None
    causal: bool
    rotary_base: float | None
    window: int | None
    bias: bool
    dropout: float


def _spelled_out(init: Any) -> inspect.Signature:
    """The signature of a layer's __init__ with the options of `Attention` in the place of **options."""
    own = [p for p in inspect.signature(init).parameters.values() if p.kind != p.VAR_KEYWORD]
    common = inspect.signature(Attention.__init__).parameters.values()
    return inspect.Signature([*own, *(p for p in common if p.kind == p.KEYWORD_ONLY)])


class Attention(nn.Module):
    """Self-attention from hidden states to hidden states; each form is a subclass and no more.

    width, num_heads: of the hidden states, and how many heads share the work.
    num_kv_heads: heads of k and v, each serving a group of query heads; num_heads unless given.
    head_dim: width // num_heads unless given.
    causal: no token sees a later one; True unless given.
    rotary_base: of rotary position embeddings, 10000 unless given; None for no positions.
    window: a token sees itself and window - 1 tokens before it (and after it, if not causal).
    bias: whether the four linear maps have one.
    dropout: the probability with which a weight of attention is dropped in training.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """`help` of a form shows the options of every layer, which it takes as **options."""
        super().__init_subclass__(**options)
        common = (inspect.getdoc(Attention) or "").partition("\n\n")[2]
        cls.__doc__ = f"{inspect.cleandoc(cls.__doc__ or '')}\n\n{common}"
        if cls.__init__ is not Attention.__init__:
            cls.__init__.__signature__ = _spelled_out(cls.__init__)  # type: ignore[attr-defined]

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        causal: bool = True,
        rotary_base: float | None = 10000.0,
        window: int | None = None,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        _check_positive(
            width=width,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            window=window,
        )
        _check_sizes(width, num_heads, num_kv_heads, head_dim, rotary_base)
        head_dim = width // num_heads if head_dim is None else head_dim
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.causal, self.rotary_base, self.window = causal, rotary_base, window
        self.dropout = dropout
        self.query = nn.Linear(width, num_heads * head_dim, bias=bias)
        self.key = nn.Linear(width, num_kv_heads * head_dim, bias=bias)
        self.value = nn.Linear(width, num_kv_heads * head_dim, bias=bias)
        self.output = nn.Linear(num_heads * head_dim, width, bias=bias)

    @abstractmethod
    def attend(self, x: Hidden, q: Heads, k: KVHeads, v: KVHeads, seen: Seen) -> Heads:
        """The form: from queries, keys and values to the output per head."""

    def forward(
        self,
        x: Hidden,
        *,
        valid: Bool[Tensor, "batch token"] | None = None,
        document: Int[Tensor, "batch token"] | None = None,
        cache: KVCache | None = None,
    ) -> Hidden:
        """valid: False at padding. document: the number of each token's document, in packed rows.

        cache: the tokens so far, of this layer; x holds the new ones and `valid` speaks of them. Pad
            prompts of several lengths on the left: positions count on behind padding on the right.
        """
        if x.ndim != 3 or x.shape[2] != self.query.in_features:
            raise ValueError(
                f"x {tuple(x.shape)}: it must be (batch, token, width), width {self.query.in_features}"
            )
        _check_valid(valid, x)
        _check_document(document, x)
        if cache is None:
            return self._attend(x, valid, document, None)
        self._check_cache(cache, valid, document)
        with nullcontext() if torch.compiler.is_compiling() else cache.undone_on_error():
            cache.serve(self)
            new = torch.ones_like(x[..., 0], dtype=torch.bool) if valid is None else valid
            return self._attend(x, new, None, cache)

    def _attend(
        self, x: Tensor, valid: Tensor | None, document: Tensor | None, cache: KVCache | None
    ) -> Tensor:
        q, k, v = (
            linear(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        start = 0 if cache is None else cache.num_tokens
        if self.rotary_base is not None:
            position = torch.arange(start, start + x.shape[1], device=x.device)
            q, k = (rotate(t, position, self.rotary_base) for t in (q, k))
        self_key = None
        if cache is not None and valid is not None:
            k, v, valid, self_key = cache.append(k, v, valid)
        z = self.attend(x, q, k, v, self._seen(k, valid, document, self_key))
        return self.output(z.transpose(1, 2).flatten(-2))

    def _seen(
        self,
        k: Tensor,
        valid: Tensor | None,
        document: Tensor | None,
        self_key: SelfKey | None,
    ) -> Seen:
        masks: list[Tensor] = []
        if valid is not None:
            masks.append(padding_mask(valid))
        if document is not None:
            masks.append(document_mask(document))
        if self.window is not None:
            own = torch.arange(k.shape[2], device=k.device) if self_key is None else self_key
            masks.append(window_mask(own, k.shape[2], size=self.window))
        mask = reduce(and_, masks) if masks else None
        dropout = self.dropout if self.training else 0.0
        return Seen(causal=self.causal, mask=mask, self_key=self_key, dropout=dropout)

    def _check_cache(self, cache: KVCache, valid: Tensor | None, document: Tensor | None) -> None:
        if not self.causal:
            raise ValueError(
                "a cache is for causal attention: with causal=False, tokens already decoded would "
                "have to see the new ones. Call without a cache."
            )
        if cache.window is not None and cache.window != self.window:
            raise ValueError(
                f"the cache keeps a window of {cache.window} tokens, but the layer sees "
                f"{self.window or 'all of them'}: make both the same"
            )
        if document is not None:
            raise ValueError("packed documents are for training; decode each document by itself")
        if self.rotary_base is not None and valid is not None and looks_at_values(valid):
            _check_padding(valid, cache)


class StandardAttention(Attention):
    """y_i = sum_j P_ij v_j."""

    def attend(self, x: Hidden, q: Heads, k: KVHeads, v: KVHeads, seen: Seen) -> Heads:
        return standard_attention(q, k, v, **seen)


class ExclusiveAttention(Attention):
    """z_i = y_i - (y_i·v̂_i) v̂_i. impl="compiled" makes one kernel of the exclusion."""

    def __init__(
        self, width: int, num_heads: int, *, impl: Impl = "eager", **options: Unpack[Options]
    ) -> None:
        super().__init__(width, num_heads, **options)
        self.impl: Impl = impl

    def attend(self, x: Hidden, q: Heads, k: KVHeads, v: KVHeads, seen: Seen) -> Heads:
        return exclusive_attention(q, k, v, **seen, impl=self.impl)


class GatedExclusiveAttention(Attention):
    """z_i = y_i - α (y_i·v̂_i) v̂_i, with α learned per head, or per head and token.

    initial_strength: α before training; 0 is standard attention, so that a pretrained model with
        `by="tanh"` starts as it was. by: see `Strength`. per: "head", or "token" for an α that is a
        linear map of the token's hidden state.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        by: By = "tanh",
        initial_strength: float = 0.0,
        per: Literal["head", "token"] = "head",
        impl: Impl = "eager",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(width, num_heads, **options)
        inputs = _chosen(per, {"head": 0, "token": width})
        self.strength = Strength(num_heads, by=by, initial=initial_strength, inputs=inputs)
        self.impl: Impl = impl

    def attend(self, x: Hidden, q: Heads, k: KVHeads, v: KVHeads, seen: Seen) -> Heads:
        alpha = self.strength(x)
        return gated_exclusive_attention(q, k, v, strength=alpha, **seen, impl=self.impl)


class GatedAttention(Attention):
    """z_i = y_i ⊙ σ(W x_i), a gate per element of each head, or per head."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        per: Literal["element", "head"] = "element",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(width, num_heads, **options)
        gates = _chosen(per, {"element": self.head_dim, "head": 1})
        self.gate = nn.Linear(width, num_heads * gates, bias=False)

    def attend(self, x: Hidden, q: Heads, k: KVHeads, v: KVHeads, seen: Seen) -> Heads:
        gate = self.gate(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return gated_attention(q, k, v, gate=gate, **seen)


class NoSelfAttention(Attention):
    """Standard attention with the own key hidden."""

    def attend(self, x: Hidden, q: Heads, k: KVHeads, v: KVHeads, seen: Seen) -> Heads:
        return no_self_attention(q, k, v, **seen)


class RandomDirectionAttention(Attention):
    """A placebo: one fixed random direction per head taken out; `seed` chooses them."""

    direction: Tensor

    def __init__(
        self, width: int, num_heads: int, *, seed: int = 0, **options: Unpack[Options]
    ) -> None:
        super().__init__(width, num_heads, **options)
        generator = torch.Generator().manual_seed(seed)
        direction = torch.randn(num_heads, self.head_dim, generator=generator, device="cpu")
        direction = F.normalize(direction, dim=-1).to(self.query.weight.device)
        self.register_buffer("direction", direction)

    def attend(self, x: Hidden, q: Heads, k: KVHeads, v: KVHeads, seen: Seen) -> Heads:
        return random_direction_attention(q, k, v, direction=self.direction, **seen)


class MeanDirectionAttention(Attention):
    """A placebo: the mean of the visible values taken out."""

    def attend(self, x: Hidden, q: Heads, k: KVHeads, v: KVHeads, seen: Seen) -> Heads:
        return mean_direction_attention(q, k, v, **seen)


class Strength(nn.Module):
    """α: tanh, sigmoid or raw of a learned number per head, plus a linear map of x if `inputs`.

    initial: α at the start, for every head (and token). Weight decay would pull α to the value at
    0, which for tanh and raw is no exclusion at all: give `parameter_groups` to the optimizer.
    """

    def __init__(self, num_heads: int, *, by: By = "tanh", initial: float, inputs: int = 0) -> None:
        super().__init__()
        self.by: By = by
        start = _inverse(by, initial)
        self.offset = nn.Parameter(torch.full((num_heads,), start))
        self.weight = nn.Parameter(torch.zeros(num_heads, inputs)) if inputs else None

    def forward(self, x: Hidden) -> Float[Tensor, " head"] | Float[Tensor, "batch head token"]:
        learned: Tensor = self.offset
        if self.weight is not None:
            learned = F.linear(x, self.weight, self.offset).transpose(1, 2)
        if self.by == "raw":
            return learned
        return torch.tanh(learned) if self.by == "tanh" else torch.sigmoid(learned)


def _inverse(by: By, initial: float) -> float:
    ranges = {"tanh": (-1.0, 1.0), "sigmoid": (0.0, 1.0), "raw": (-math.inf, math.inf)}
    if by not in ranges:
        raise ValueError(f"by={by!r}: a strength is made by one of {', '.join(get_args(By))}")
    low, high = ranges[by]
    if not low < initial < high:
        raise ValueError(f"initial strength {initial} by {by}: it must lie within ({low}, {high})")
    if by == "raw":
        return initial
    return math.atanh(initial) if by == "tanh" else math.log(initial / (1 - initial))


def rotate(
    x: Float[Tensor, "batch head token dim"], position: Int[Tensor, " token"], base: float
) -> Float[Tensor, "batch head token dim"]:
    """Rotary position embedding: turn pair (x_m, x_{m + dim/2}) by position * base^(-2m/dim)."""
    half = x.shape[-1] // 2
    inner = torch.promote_types(x.dtype, torch.float32)
    frequency = base ** -(torch.arange(half, device=x.device, dtype=inner) / half)
    angle = position.to(inner)[:, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    first, second = x.to(inner).split(half, dim=-1)
    turned = torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
    return turned.to(x.dtype)


def parameter_groups(model: nn.Module, *, weight_decay: float) -> list[dict[str, Any]]:
    """Groups for an optimizer: matrices decay; vectors (biases, norms) and strengths never do.

    The group named "strength" holds the parameters of every `Strength`; give it a learning rate of
    its own by `group["lr"] = ...`. Parameters that ask for no gradient are left out.
    """
    strengths = {id(p) for m in model.modules() if isinstance(m, Strength) for p in m.parameters()}
    groups: dict[str, list[nn.Parameter]] = {"decay": [], "no_decay": [], "strength": []}
    for p in model.parameters():
        if p.requires_grad:
            name = "strength" if id(p) in strengths else "decay" if p.ndim > 1 else "no_decay"
            groups[name].append(p)
    return [
        {"name": name, "params": params, "weight_decay": weight_decay if name == "decay" else 0.0}
        for name, params in groups.items()
        if params
    ]


def _chosen(per: str, sizes: dict[str, int]) -> int:
    if per not in sizes:
        raise ValueError(f"per={per!r}: it must be one of {', '.join(sizes)}.")
    return sizes[per]


def _check_valid(valid: Tensor | None, x: Tensor) -> None:
    if valid is not None and (valid.dtype != torch.bool or valid.shape != x.shape[:2]):
        raise ValueError(
            f"valid {tuple(valid.shape)}, {valid.dtype}: it must be (batch, token) = "
            f"{tuple(x.shape[:2])} and bool, True at tokens and False at padding; use .bool() on ones "
            "and zeros."
        )


def _check_document(document: Tensor | None, x: Tensor) -> None:
    if document is not None and (document.is_floating_point() or document.shape != x.shape[:2]):
        raise ValueError(
            f"document {tuple(document.shape)}, {document.dtype}: it must be (batch, token) = "
            f"{tuple(x.shape[:2])} and integers, the same number for tokens of the same document."
        )


def _check_padding(valid: Tensor, cache: KVCache) -> None:
    """Padding behind a token would count as a position; a row that is done may go on with it."""
    full = cache.valid_with(valid)
    behind = (full.cumsum(dim=1) > 0) & ~full
    resumed = (behind.cumsum(dim=1) > 0) & full
    if resumed.any() or (valid.shape[1] > 1 and behind[:, -1].any()):
        raise ValueError(
            "padding behind tokens of a row: with a cache, the positions of what follows would count "
            "it. Pad prompts on the left, so that `valid` is False only before the tokens of a row."
        )


def _check_positive(**sizes: int | None) -> None:
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise ValueError(f"{name}={size}: it must be 1 or more")


def _check_sizes(
    width: int, num_heads: int, num_kv_heads: int, head_dim: int | None, rotary_base: float | None
) -> None:
    if head_dim is None and width % num_heads:
        raise ValueError(
            f"width {width} does not divide over {num_heads} heads; choose another, or give head_dim"
        )
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads do not divide over {num_kv_heads} heads of k and v")
    dim = width // num_heads if head_dim is None else head_dim
    if rotary_base is not None and dim % 2:
        raise ValueError(
            f"head dim {dim} is odd: rotary positions turn pairs; give an even head_dim, or "
            "rotary_base=None for no positions"
        )
