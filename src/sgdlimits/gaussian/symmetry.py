r"""Symmetries of a standard normal vector: its coordinates change places and signs.

An average over nodes keeps a symmetry of what it averages if the set of nodes has that symmetry. A set that has a group of them
is a union of orbits, and each orbit has as many points as the group. So the error is that of the number of orbits, and a group
should not be larger than what is averaged asks for.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from jaxtyping import Float

Turn = tuple[int, ...]
"""Coordinate i becomes coordinate |t_i| - 1, with the sign of t_i."""

Group = tuple[Turn, ...]


def unit(dim: int) -> Turn:
    return tuple(range(1, dim + 1))


def parity(dim: int) -> Group:
    """All signs at once, or none."""
    return unit(dim), tuple(-i for i in unit(dim))


def enlarged(group: Group, turns: Iterable[Turn], most: int) -> Group:
    """The group with further turns, each taken in its order where the group then has at most `most` elements.

    >>> enlarged(parity(2), [(2, 1), (-1, 2)], most=4)                          # (-1, 2) would make it eight
    ((2, 1), (1, 2), (-1, -2), (-2, -1))
    """
    for turn in turns:
        found, new = set(group), {turn} - set(group)
        while new and len(found) <= most:
            found |= new
            new = {tuple(int(np.sign(i)) * h[abs(i) - 1] for i in g) for g in (*group, turn) for h in new} - found
        group = tuple(sorted(found, reverse=True)) if len(found) <= most else group
    return group


def orbits(points: Float[np.ndarray, "dim n"], group: Group) -> Float[np.ndarray, "dim m"]:
    """The points in all their turns."""
    turns = np.asarray(group)
    return np.concatenate([np.sign(turn)[:, None] * points[np.abs(turn) - 1] for turn in turns], axis=1)
