"""Dimension and stability of a component of fixed points."""

from __future__ import annotations

from typing import Literal

import numpy as np

from sgdlimits.analysis.fixed_points.components import SAME_ROOT_DISTANCE, are_connected, has_valid_jacobian, make_displacements
from sgdlimits.analysis.fixed_points.roots import Roots, flow_to_rest, refine_roots
from sgdlimits.analysis.fixed_points.system import DriftSystem

# "neutral": the flow returns to the component, but not to the same point
Stability = Literal["stable", "neutral", "unstable", "unknown"]

NULL_STEP_LENGTH = 0.02
"""Length of the step along a null vector of the Jacobian, relative to 1 plus the norm of the root."""
PERTURBATION_COUNT, COSTLY_PERTURBATION_COUNT = 16, 4
"""Numbers of random displacements of each perturbed point, for cheap and for costly drifts."""
MAX_POINTS_PERTURBED = 4
"""Number of points perturbed for the most zero coordinates, and equally number of those for the largest growth rates."""
MAX_DIMENSIONS_MEASURED = 8
"""Number of roots at which the dimension of a component is measured."""
PERTURBED_FLOW_BLOCKS = 24
"""Number of blocks of ODE steps by which a perturbed point is followed."""
MAX_RETURN_DISTANCE = 0.5
"""Largest final distance from the fixed point, relative to the displacement, at which a perturbed point has returned."""


def measure_dimensions(system: DriftSystem, roots: Roots) -> np.ndarray:
    """Return the dimension of the set of fixed points at each root: the number of null vectors along which it extends.

    A point displaced along each null vector of the Jacobian is projected back onto the fixed points; the vector counts if the
    projection keeps the displacement.
    """
    values, zero = roots.spectra
    counts = (np.abs(values) < zero[:, None]).sum(1)
    owner = np.repeat(np.arange(len(counts)), counts)
    if not owner.size:
        return counts
    # right singular vectors of the smallest singular values
    null = np.concatenate([rows[system.size - n :] for rows, n in zip(np.linalg.svd(roots.jacobian)[2], counts, strict=True)])
    along = NULL_STEP_LENGTH * (1 + np.linalg.norm(roots.x[owner], axis=1, keepdims=True)) * null
    # in both directions: the point may lie at the boundary of its component
    origin, step = np.tile(roots.x[owner], (2, 1)), np.concatenate([along, -along])
    ends = refine_roots(system, origin + step)
    # the share of the step that survives the projection
    gone = ((ends.x - origin) * step).sum(1) / (step**2).sum(1)
    kept = ends.found & (gone > 0.5) & (np.linalg.norm(ends.x - origin - step, axis=1) < 0.5 * np.linalg.norm(step, axis=1))
    return np.bincount(owner[kept.reshape(2, -1).any(0)], minlength=len(counts))


def find_root_of_largest_dimension(system: DriftSystem, roots: Roots) -> tuple[int, int]:
    """Return the index of a root at which a component has its largest dimension, and this dimension."""
    values, zero = roots.spectra
    zeros, off_axes = (np.abs(values) < zero[:, None]).sum(1), np.log(np.abs(roots.x) + SAME_ROOT_DISTANCE).sum(1)
    # most zero eigenvalues first, then farthest from the coordinate planes, on which components often have corners
    inside = np.lexsort([-off_axes, -zeros])[:MAX_DIMENSIONS_MEASURED]
    dimension = measure_dimensions(system, roots.select(inside))
    return int(inside[dimension.argmax()]), int(dimension.max())


def stability_of(system: DriftSystem, roots: Roots, dimension: int, towards: np.ndarray) -> Stability:
    r"""Decide the stability of a component of fixed points, from the Jacobian or by following perturbed points.

    Eigenvalues of the Jacobian J decide where J predicts the drift after small displacements within the statistics of weights
    (`has_valid_jacobian`). These statistics are a convex set with an interior, which the flow maps into itself, so that
    :math:`e^{Jt}` maps the cone of displacements into the set to itself. The leading eigenvector of a matrix that maps a cone
    to itself lies in the cone (Perron, Frobenius, Krein and Rutman), so that a growing direction can be reached also where the
    covariance Omega of the fields is singular. Elsewhere, at kinks of relu units and where derivatives are inaccurate, points
    are displaced towards the statistics `towards` and followed by the ODE until they rest.

    Parameters
    ----------
    roots : sampled points of the component
    dimension : dimension of the component
    towards : rows of coordinates, the directions of displacements
    """
    values, zero = roots.spectra
    leading = values[:, 0].real
    growing = np.flatnonzero(leading > zero)
    growing = growing[np.argsort(-leading[growing], kind="stable")[:MAX_POINTS_PERTURBED]]
    if has_valid_jacobian(system, roots.select(growing), towards).any():
        return "unstable"
    # a manifold has zero eigenvalues, and is never decided by them
    decays = dimension == 0 and bool((leading < -zero).all())
    if decays and has_valid_jacobian(system, roots, towards).all():
        return "stable"
    corners = np.argsort((np.abs(roots.x) > SAME_ROOT_DISTANCE).sum(1), kind="stable")[:MAX_POINTS_PERTURBED]
    ends = np.unique(np.concatenate([corners, growing]))
    gone, back = follow_perturbed(
        system, roots.x[ends], towards[: COSTLY_PERTURBATION_COUNT if system.costly else PERTURBATION_COUNT]
    )
    if gone:
        return "unstable"
    return "stable" if decays or (dimension == 0 and growing.size and back) else "neutral"


def follow_perturbed(system: DriftSystem, points: np.ndarray, towards: np.ndarray) -> tuple[bool, bool]:
    """Follow the ODE from perturbed points; return whether any of them escapes, and whether all of them return.

    A point escapes if it comes to rest on another component, and returns if it approaches its origin.
    """
    step = make_displacements(points, towards).reshape(-1, system.size)
    origin = np.repeat(points, len(towards), axis=0)
    settled = flow_to_rest(system, origin + step, PERTURBED_FLOW_BLOCKS)
    back = np.linalg.norm(settled - origin, axis=1) < MAX_RETURN_DISTANCE * np.linalg.norm(step, axis=1)
    if back.all():
        return False, True
    away = np.flatnonzero(~back)
    roots = refine_roots(system, settled[away])
    # the flow left for somewhere without a root, such as infinity
    if not roots.found.all():
        return True, False
    return not are_connected(system, origin[away], roots.x).all(), False
