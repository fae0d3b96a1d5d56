"""Eigenvalues with their multiplicities: how the Hessian of the population risk in R^d is told, whatever d."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from sgdlimits.text import table

TOLERANCE = 1e-8


class Index(NamedTuple):
    """How many directions are negative, null and positive."""

    negative: int
    null: int
    positive: int


class Spectrum(NamedTuple):
    """Eigenvalues that differ, ascending, and how often each occurs. It unpacks as the two.

    Parameters
    ----------
    eigenvalues : those closer than a tolerance times the largest are one, their mean; 0.0 where they are as close to zero
    multiplicities : whole numbers

    >>> Spectrum(np.array([-4.0, 0.0]), np.array([1, 2998]))
    Spectrum of 2999 eigenvalues: 1 negative, 2998 null, 0 positive
      eigenvalue  multiplicity
              -4             1
               0          2998
    """

    eigenvalues: Float[np.ndarray, " distinct"]
    multiplicities: Int[np.ndarray, " distinct"]

    @property
    def index(self) -> Index:  # type: ignore[override]
        """How many directions are negative, null and positive."""
        return Index(*(int(self.multiplicities[np.sign(self.eigenvalues) == sign].sum()) for sign in (-1, 0, 1)))

    @property
    def size(self) -> int:
        """How many eigenvalues there are, each as often as it occurs."""
        return int(self.multiplicities.sum())

    def __repr__(self) -> str:
        index = self.index
        head = f"Spectrum of {self.size} eigenvalues: {index.negative} negative, {index.null} null, {index.positive} positive"
        pairs = zip(self.eigenvalues, self.multiplicities, strict=True)
        rows = [("eigenvalue", "multiplicity"), *((f"{value:.6g}", str(count)) for value, count in pairs)]
        return f"{head}\n{table(rows, '>', indent='  ')}"


def spectrum_of(values: Float[np.ndarray, " n"], counts: Int[np.ndarray, " n"], tolerance: float = TOLERANCE) -> Spectrum:
    """A spectrum from eigenvalues with multiplicities, some of which may be the same up to rounding.

    >>> spectrum_of(np.array([1e-17, 2.0, 0.0, 2.0 + 1e-12]), np.array([1, 1, 5, 7])).multiplicities.tolist()
    [6, 8]
    """
    values, counts = np.asarray(values)[counts > 0], np.asarray(counts)[counts > 0]
    order = np.argsort(values, kind="stable")
    values, counts = values[order], counts[order]
    near = tolerance * np.abs(values).max(initial=0.0)
    starts = np.flatnonzero(np.diff(values, prepend=-np.inf) > near)
    total = np.add.reduceat(counts, starts)
    shares = counts / np.repeat(total, np.diff(np.append(starts, values.size)))
    means = np.add.reduceat(values * shares, starts)
    return Spectrum(np.where(np.abs(means) <= near, 0.0, means), total)
