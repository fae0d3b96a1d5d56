"""Escaping mediocrity, figure 3: runs of SGD and SDE and the ODE from one start, two units [1]_.

The paper repeats its figure 1 (left) at p = 2: the SDE has the spread of SGD, and the exit times hardly change.
"""

from __future__ import annotations

from sgdlimits.papers.figure import DrawnFigure, SaveDataset, Size
from sgdlimits.papers.mediocrity.figures.mediocrity_1_left import PARAMETER_WORDS as PARAMETER_WORDS, simulate_and_draw

FULL_SIZE = Size(d=3000, t_max=40.0, sgd=16, sde=30, chain=500)
QUICK_SIZE = FULL_SIZE.with_changes(d=300, sgd=8, sde=16, chain=200)


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Simulate two units by SGD, SDE, ODE and chain from one start, and draw the risk against time with the exit times."""
    return simulate_and_draw(width=2, lr=2 / 12, noise=0.0, threshold=0.5, size=size, seed=seed, save_dataset=save_dataset)
