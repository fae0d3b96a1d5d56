"""Escaping mediocrity, figure 1 (left): runs of SGD and SDE and the ODE from one start, one unit [1]_.

The paper shows the population risk at d = 3000 with the exit times marked, and concludes that the SDE has the spread of SGD
while the exit times hardly change.
"""

from __future__ import annotations

from sgdlimits.figures.base import Drawn, Keep, Size, ignore
from sgdlimits.figures.same_start import draw

FULL = Size(d=3000, t_max=60.0, sgd=16, sde=30, chain=1000)
QUICK = FULL.but(d=300, sgd=8, sde=16, chain=200)
"""Dimension, end in t, and runs of SGD, of the SDE, and of the chain behind the numbers."""


def make(size: Size = FULL, seed: int = 0, keep: Keep = ignore) -> Drawn:
    """One unit at the learning rate that needs the fewest samples without noise."""
    return draw(width=1, lr=1 / 12, noise=0.0, threshold=0.5, size=size, seed=seed, keep=keep)
