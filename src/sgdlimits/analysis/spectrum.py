"""Spectra as eigenvalues with multiplicities, for Hessians of the population risk in R^d at any d."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from sgdlimits.text import format_table

EIGENVALUE_TOLERANCE = 1e-8
"""Distance, relative to the largest |eigenvalue|, within which eigenvalues count as equal."""


class Index(NamedTuple):
    """Numbers of negative, zero and positive eigenvalues of a spectrum."""

    negative: int
    null: int
    positive: int


class HessianSpectrum(NamedTuple):
    """Distinct eigenvalues of a Hessian in ascending order and their multiplicities; unpacks as these two arrays.

    Parameters
    ----------
    eigenvalues : distinct eigenvalues, each the mean of those closer than a tolerance times the largest; 0.0 if that close to 0
    multiplicities : number of occurrences of each eigenvalue

    >>> HessianSpectrum(np.array([-4.0, 0.0]), np.array([1, 2998]))
    Spectrum of 2999 eigenvalues: 1 negative, 2998 null, 0 positive
      eigenvalue  multiplicity
              -4             1
               0          2998
    """

    eigenvalues: Float[np.ndarray, " distinct"]
    multiplicities: Int[np.ndarray, " distinct"]

    @property
    def index(self) -> Index:  # type: ignore[override]
        """Numbers of negative, zero and positive eigenvalues."""
        return Index(*(int(self.multiplicities[np.sign(self.eigenvalues) == sign].sum()) for sign in (-1, 0, 1)))

    @property
    def size(self) -> int:
        """Number of eigenvalues, counted with multiplicity."""
        return int(self.multiplicities.sum())

    def __repr__(self) -> str:
        index = self.index
        head = f"Spectrum of {self.size} eigenvalues: {index.negative} negative, {index.null} null, {index.positive} positive"
        pairs = zip(self.eigenvalues, self.multiplicities, strict=True)
        rows = [("eigenvalue", "multiplicity"), *((f"{value:.6g}", str(count)) for value, count in pairs)]
        return f"{head}\n{format_table(rows, '>', indent='  ')}"


def make_spectrum(
    values: Float[np.ndarray, " n"], counts: Int[np.ndarray, " n"], tolerance: float = EIGENVALUE_TOLERANCE
) -> HessianSpectrum:
    """Return the `HessianSpectrum` of eigenvalues with multiplicities, in which those equal up to rounding are merged.

    >>> make_spectrum(np.array([1e-17, 2.0, 0.0, 2.0 + 1e-12]), np.array([1, 1, 5, 7])).multiplicities.tolist()
    [6, 8]
    """
    values, counts = np.asarray(values)[counts > 0], np.asarray(counts)[counts > 0]
    # equal eigenvalues become neighbours
    order = np.argsort(values, kind="stable")
    values, counts = values[order], counts[order]
    # relative to the largest, so that the scale of the risk does not matter
    near = tolerance * np.abs(values).max(initial=0.0)
    starts = np.flatnonzero(np.diff(values, prepend=-np.inf) > near)
    total = np.add.reduceat(counts, starts)
    # weighted mean within each group of nearly equal eigenvalues
    shares = counts / np.repeat(total, np.diff(np.append(starts, values.size)))
    means = np.add.reduceat(values * shares, starts)
    return HessianSpectrum(np.where(np.abs(means) <= near, 0.0, means), total)
