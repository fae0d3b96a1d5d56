"""How the numbers of a tree lie in a row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import PyTree


@dataclass(frozen=True)
class Layout:
    """Of trees whose leaves have these shapes."""

    tree: Any
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, tree: PyTree) -> Layout:
        return cls(jax.tree.structure(tree), tuple(leaf.shape for leaf in jax.tree.leaves(tree)))

    @property
    def size(self) -> int:
        """How long a row is."""
        return sum(map(math.prod, self.shapes))

    def values(self, rows: Any) -> PyTree:
        """The tree of a row, or of rows, whose leading axes are kept."""
        leaves, first = [], 0
        for shape in self.shapes:
            last = first + math.prod(shape)
            leaves.append(rows[..., first:last].reshape(*rows.shape[:-1], *shape))
            first = last
        return jax.tree.unflatten(self.tree, leaves)
