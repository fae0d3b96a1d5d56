"""Escaping mediocrity, figure 3: runs of SGD and SDE and the ODE from one start, two units [1]_.

The paper shows at p = 2 what its figure 1 (left) shows at p = 1: spread in the SDE, and exit times that hardly change.

.. [1] Arnaboldi, Krzakala, Loureiro, Stephan, *Escaping mediocrity: how two-layer networks learn hard generalized
   linear models*.
"""

from __future__ import annotations

from sgdlimits.figures.base import Drawn, Keep, ignore
from sgdlimits.figures.same_start import Size, draw

FULL, QUICK = Size(3000, 40.0, 16, 30, 500), Size(300, 40.0, 8, 16, 200)


def make(size: Size = FULL, seed: int = 0, keep: Keep = ignore) -> Drawn:
    """Two units, at the same lr/p as in figure 1."""
    return draw(width=2, lr=2 / 12, noise=0.0, threshold=0.5, size=size, seed=seed, keep=keep)
