"""Escaping mediocrity, figure 3: runs of SGD and SDE and the ODE from one start, two units [1]_.

The paper shows at p = 2 what its figure 1 (left) shows at p = 1: spread in the SDE, and exit times that hardly change.
"""

from __future__ import annotations

from sgdlimits.papers.figure import Drawn, Keep, Size
from sgdlimits.papers.mediocrity.figures.mediocrity_1_left import WORDS as WORDS, draw

FULL = Size(d=3000, t_max=40.0, sgd=16, sde=30, chain=500)
QUICK = FULL.but(d=300, sgd=8, sde=16, chain=200)


def make(size: Size, seed: int, keep: Keep) -> Drawn:
    """Two units, at the same lr/p as in figure 1."""
    return draw(width=2, lr=2 / 12, noise=0.0, threshold=0.5, size=size, seed=seed, keep=keep)
