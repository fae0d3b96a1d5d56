"""What happens near a component of fixed points."""

from __future__ import annotations

from typing import Literal

import numpy as np

from sgdlimits.analysis.fixed_points.components import SAME, connected, displacements, smooth
from sgdlimits.analysis.fixed_points.roots import Roots, roots_near, settle
from sgdlimits.analysis.fixed_points.system import System

Stability = Literal["stable", "neutral", "unstable", "unknown"]

STEP = 0.02
WAYS, FEW_WAYS = 16, 4
CORNERS = 4
"""So many points with the most zeros among their coordinates are displaced, and so many of the largest growth."""
INSIDE = 8
BLOCKS = 24
RETURNED = 0.5


def dimensions(system: System, roots: Roots) -> np.ndarray:
    """The dimension of the fixed points near each root: zero eigenvalues along which there are fixed points.

    A step along each vector of the null space is projected onto the fixed points, and counts where it is not taken back.
    """
    values, zero = roots.spectra
    counts = (np.abs(values) < zero[:, None]).sum(1)
    owner = np.repeat(np.arange(len(counts)), counts)
    if not owner.size:
        return counts
    null = np.concatenate([rows[system.size - n :] for rows, n in zip(np.linalg.svd(roots.jacobian)[2], counts, strict=True)])
    along = STEP * (1 + np.linalg.norm(roots.x[owner], axis=1, keepdims=True)) * null
    origin, step = np.tile(roots.x[owner], (2, 1)), np.concatenate([along, -along])
    ends = roots_near(system, origin + step)
    gone = ((ends.x - origin) * step).sum(1) / (step**2).sum(1)
    kept = ends.found & (gone > 0.5) & (np.linalg.norm(ends.x - origin - step, axis=1) < 0.5 * np.linalg.norm(step, axis=1))
    return np.bincount(owner[kept.reshape(2, -1).any(0)], minlength=len(counts))


def representative(system: System, roots: Roots) -> tuple[int, int]:
    """(the root where the component has its full dimension, that dimension)."""
    values, zero = roots.spectra
    zeros, off_axes = (np.abs(values) < zero[:, None]).sum(1), np.log(np.abs(roots.x) + SAME).sum(1)
    inside = np.lexsort([-off_axes, -zeros])[:INSIDE]
    dimension = dimensions(system, roots.at(inside))
    return int(inside[dimension.argmax()]), int(dimension.max())


def stability_of(system: System, roots: Roots, dimension: int, towards: np.ndarray) -> Stability:
    r"""Whether the flow leaves a component, returns to where it was, or neither, from the sampled points of it.

    Eigenvalues decide where the Jacobian J says what small displacements into the statistics of weights do (`smooth`). The flow
    keeps these statistics, a convex set with an interior, so that :math:`e^{Jt}` keeps the cone of displacements into it, and
    the leading eigenvector of a matrix that keeps a cone lies in it (Perron, Frobenius, Krein and Rutman): growth is then
    within reach also where Omega is singular. Elsewhere, at kinks of relu units and where derivatives are lost, points are
    displaced towards random statistics and followed until they rest.
    """
    values, zero = roots.spectra
    leading = values[:, 0].real
    growing = np.flatnonzero(leading > zero)
    growing = growing[np.argsort(-leading[growing], kind="stable")[:CORNERS]]
    if smooth(system, roots.at(growing), towards).any():
        return "unstable"
    decays = dimension == 0 and bool((leading < -zero).all())
    if decays and smooth(system, roots, towards).all():
        return "stable"
    corners = np.argsort((np.abs(roots.x) > SAME).sum(1), kind="stable")[:CORNERS]
    ends = np.unique(np.concatenate([corners, growing]))
    gone, back = escapes(system, roots.x[ends], towards[: FEW_WAYS if system.costly else WAYS])
    if gone:
        return "unstable"
    return "stable" if decays or (dimension == 0 and growing.size and back) else "neutral"


def escapes(system: System, points: np.ndarray, towards: np.ndarray) -> tuple[bool, bool]:
    """(whether points, displaced a little, ever rest where no way leads back to them, whether they all come closer again)."""
    step = displacements(points, towards).reshape(-1, system.size)
    origin = np.repeat(points, len(towards), axis=0)
    settled = settle(system, origin + step, BLOCKS)
    back = np.linalg.norm(settled - origin, axis=1) < RETURNED * np.linalg.norm(step, axis=1)
    if back.all():
        return False, True
    away = np.flatnonzero(~back)
    roots = roots_near(system, settled[away])
    if not roots.found.all():
        return True, False
    return not connected(system, origin[away], roots.x).all(), False
