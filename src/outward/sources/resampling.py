"""From one sampling rate to another, band-limited, always by the same arithmetic."""

from math import gcd

import torch
from jaxtyping import Float
from torch import Tensor

ZEROS = 16  # zero crossings of the sinc on each side
ROLLOFF = 0.95  # of the lower Nyquist frequency; the rest is where the filter falls


def resample(wave: Float[Tensor, " time"], rate: int, to: int) -> Float[Tensor, " resampled"]:
    """The wave at another rate: windowed sinc interpolation, h(t) = sinc(2ft) cos²(πft / ZEROS)."""
    if rate == to:
        return wave
    divisor = gcd(rate, to)
    old, new = rate // divisor, to // divisor
    kernel, width = _kernel(old, new)
    padded = torch.nn.functional.pad(wave, (width, width + old))
    phases = torch.nn.functional.conv1d(padded[None, None], kernel.to(wave.dtype), stride=old)
    return phases[0].T.flatten()[: -(-len(wave) * new // old)]


def _kernel(old: int, new: int) -> tuple[Float[Tensor, "phase 1 tap"], int]:
    """One filter for each of the `new` phases, and its half width in input samples."""
    frequency = ROLLOFF * min(old, new) / 2  # in cycles per `old` input samples
    width = int(-(-ZEROS * old // (2 * frequency)))
    taps = torch.arange(-width, width + old, dtype=torch.float64) / old
    t = taps - torch.arange(new, dtype=torch.float64)[:, None] / new
    x = (2 * frequency * t).clamp(-ZEROS, ZEROS)
    window = torch.cos(torch.pi * x / ZEROS / 2) ** 2
    return (torch.sinc(x) * window * 2 * frequency / old)[:, None], width
