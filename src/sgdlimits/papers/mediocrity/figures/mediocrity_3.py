"""Escaping mediocrity, figure 3: runs of SGD and SDE and the ODE from one start, two units [1]_.

The paper repeats its figure 1 (left) at p = 2: the SDE has the spread of SGD, and the exit times hardly change.
"""

from __future__ import annotations

from sgdlimits.papers.figure import DrawnFigure, Keep, Size
from sgdlimits.papers.mediocrity.figures.mediocrity_1_left import WORDS as WORDS, simulate_and_draw

FULL = Size(d=3000, t_max=40.0, sgd=16, sde=30, chain=500)
QUICK = FULL.but(d=300, sgd=8, sde=16, chain=200)


def make(size: Size, seed: int, keep: Keep) -> DrawnFigure:
    """Simulate two units by SGD, SDE, ODE and chain from one start, and draw the risk against time with the exit times."""
    return simulate_and_draw(width=2, lr=2 / 12, noise=0.0, threshold=0.5, size=size, seed=seed, keep=keep)
