"""What happens near a component of fixed points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from sgdlimits.analysis.fixed_points.components import SAME, connected
from sgdlimits.analysis.fixed_points.roots import linearised, roots_near
from sgdlimits.analysis.fixed_points.settle import settle
from sgdlimits.analysis.fixed_points.system import System

Stability = Literal["stable", "neutral", "unstable"]

ZERO = 1e-6
"""Eigenvalues below this, relative to the norm of the Jacobian, are zero."""
STEP = 0.02
DISPLACEMENT = 1e-4
WAYS = 16
CORNERS = 4
INSIDE = 8
BLOCKS = 24


def spectra(system: System, points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(eigenvalues with the largest real part first, what counts as zero among them, Jacobian) at each point."""
    J = linearised(system, points)[1]
    values = np.linalg.eigvals(J)
    values = np.take_along_axis(values, np.argsort(-values.real, axis=1, kind="stable"), 1)
    return values, ZERO * np.linalg.norm(J, axis=(1, 2)), J


def dimensions(system: System, points: np.ndarray) -> np.ndarray:
    """The dimension of the fixed points near each point: zero eigenvalues along which there are fixed points.

    A step along each vector of the null space is projected onto the fixed points, and counts where it is not taken back.
    """
    values, zero, J = spectra(system, points)
    counts = (np.abs(values) < zero[:, None]).sum(1)
    owners, steps = [], []
    for i, count in enumerate(counts):
        null = np.linalg.svd(J[i])[2][len(J[i]) - count :]
        length = STEP * (1 + np.linalg.norm(points[i]))
        owners += [(i, c) for c in range(count) for _ in range(2)]
        steps += [sign * length * v for v in null for sign in (1, -1)]
    dimension = np.zeros(len(points), int)
    if not steps:
        return dimension
    origin, step = points[[i for i, _ in owners]], np.array(steps)
    roots = roots_near(system, origin + step)
    gone = ((roots.x - origin) * step).sum(1) / (step**2).sum(1)
    kept = roots.found & (gone > 0.5) & (np.linalg.norm(roots.x - origin - step, axis=1) < 0.5 * np.linalg.norm(step, axis=1))
    for i, _ in {owner for owner, good in zip(owners, kept, strict=True) if good}:
        dimension[i] += 1
    return dimension


def representative(system: System, points: np.ndarray) -> tuple[np.ndarray, int]:
    """(a point where the component has its full dimension, that dimension)."""
    values, zero, _ = spectra(system, points)
    zeros, off_axes = (np.abs(values) < zero[:, None]).sum(1), np.log(np.abs(points) + SAME).sum(1)
    inside = points[np.lexsort([-off_axes, -zeros])[:INSIDE]]
    dimension = dimensions(system, inside)
    return inside[dimension.argmax()], int(dimension.max())


def stabilities(
    system: System, components: Sequence[np.ndarray], dimension: Sequence[int], towards: np.ndarray
) -> list[Stability]:
    """Whether the flow leaves a component, returns to where it was, or neither, from the sampled points of each.

    It leaves where an eigenvalue is positive. Drifts of relu units are only piecewise smooth, and a Jacobian at a kink shows
    one side at most; so points with many zeros are also displaced, each towards random statistics, which keeps them
    statistics of weights, and followed until they rest.
    """
    words: dict[int, Stability] = {}
    for i, (points, size) in enumerate(zip(components, dimension, strict=True)):
        values, zero, _ = spectra(system, points)
        if (values[:, 0].real > zero).any():
            words[i] = "unstable"
        else:
            words[i] = "stable" if size == 0 and (values[:, 0].real < -zero).all() else "neutral"
    ends = [(i, x) for i, word in words.items() if word != "unstable" for x in corners(components[i])]
    if ends:
        gone = escapes(system, np.stack([x for _, x in ends]), towards)
        words |= {i: "unstable" for (i, _), left in zip(ends, gone, strict=True) if left}
    return list(words.values())


def corners(points: np.ndarray) -> np.ndarray:
    """The points with the most coordinates that are zero."""
    return points[np.argsort((np.abs(points) > SAME).sum(1), kind="stable")[:CORNERS]]


def escapes(system: System, points: np.ndarray, towards: np.ndarray) -> np.ndarray:
    """Which points, displaced a little in one of several directions, come to rest where no way leads back to them."""
    ways = towards[:WAYS]
    origin = np.repeat(points, len(ways), axis=0)
    direction = np.tile(ways, (len(points), 1)) - origin
    size = 1 + np.linalg.norm(origin, axis=1)
    length = np.minimum(1, DISPLACEMENT * size / np.maximum(np.linalg.norm(direction, axis=1), SAME))
    roots = roots_near(system, settle(system, origin + length[:, None] * direction, BLOCKS))
    gone = ~roots.found
    gone[roots.found] = ~connected(system, origin[roots.found], roots.x[roots.found])
    return np.any(gone.reshape(len(points), -1), axis=1)
