"""Escaping mediocrity, figure 1 (left): runs of SGD and SDE and the ODE from one start, one unit [1]_.

The paper shows the population risk at d = 3000 with the exit times marked, and concludes that the SDE has the spread of SGD
while the exit times hardly change.

.. [1] Arnaboldi, Krzakala, Loureiro, Stephan, *Escaping mediocrity: how two-layer networks learn hard generalized
   linear models*.
"""

from __future__ import annotations

from sgdlimits.figures.base import Drawn, Keep, ignore
from sgdlimits.figures.same_start import Size, draw

FULL, QUICK = Size(3000, 60.0, 16, 30, 1000), Size(300, 60.0, 8, 16, 200)


def make(size: Size = FULL, seed: int = 0, keep: Keep = ignore) -> Drawn:
    """One unit at the learning rate that needs the fewest samples without noise."""
    return draw(width=1, lr=1 / 12, noise=0.0, threshold=0.5, size=size, seed=seed, keep=keep)
