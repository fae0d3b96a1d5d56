"""Roots of the drift near given points, and where the ODE's flow comes to rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float
from scipy.optimize import root

from sgdlimits.analysis.fixed_points.system import System, in_chunks

STEPS = 60
FIXED = 1e-9
"""A root's drift is smaller than this, relative to the Jacobian times the size of the point."""
ROUNDING = 1e-12
"""Where it is smaller than this, and a step makes it no smaller, the search ends."""
SNAP = 0.04
"""Coordinates below this share of the largest are set to zero for a second search."""
FAR = 1e6
ZERO = 1e-6
"""Eigenvalues below this, relative to the norm of the Jacobian, are zero."""
METHODS = {False: ("lm", {"xtol": 1e-13, "ftol": 1e-13}), True: ("hybr", {"xtol": 1e-4, "maxfev": 100})}
"""Of MINPACK. Powell's, for costly drifts, renews the Jacobian only where its updates serve no more."""
BLOCKS, BLOCK = 64, 32
FINE, FINE_BLOCKS = 1 / 8, 4
STILL = 1e-8
"""A state is at rest where its drift is below this, relative to the Jacobian times its size."""


class Roots(NamedTuple):
    """Where searches ended, the norm of the drift and the Jacobian there, and whether these are roots that exist."""

    x: np.ndarray
    residual: np.ndarray
    jacobian: np.ndarray
    found: np.ndarray

    def at(self, rows: np.ndarray) -> Roots:
        return Roots(*(leaf[rows] for leaf in self))

    @classmethod
    def join(cls, parts: Sequence[Roots]) -> Roots:
        return cls(*(np.concatenate(leaves) for leaves in zip(*parts, strict=True)))

    @classmethod
    def none(cls, n: int) -> Roots:
        return cls(np.empty((0, n)), np.empty(0), np.empty((0, n, n)), np.empty(0, bool))

    @property
    def spectra(self) -> tuple[np.ndarray, np.ndarray]:
        """(eigenvalues of each Jacobian with the largest real part first, what counts as zero among them)."""
        values = np.linalg.eigvals(self.jacobian)
        values = np.take_along_axis(values, np.argsort(-values.real, axis=1, kind="stable"), 1)
        return values, ZERO * np.linalg.norm(self.jacobian, axis=(1, 2))


def roots_from(system: System, x: np.ndarray) -> Roots:
    """Roots from starts that may be far: a method of MINPACK (SciPy) from each row, then `roots_near` its end."""
    method, options = METHODS[system.costly]
    drift_at, jacobian_at = system.at_once(System.drift), system.at_once(System.jacobian)
    drift = lambda row: np.asarray(drift_at(row))
    jacobian = lambda row: np.asarray(jacobian_at(row))
    ends = []
    for row in x:
        ends.append(root(drift, row, jac=jacobian, method=method, options=options).x)
        system.watch.tick()
    return roots_near(system, np.where(np.isfinite(ends), ends, x))


def roots_near(system: System, x: np.ndarray, steps: int = STEPS) -> Roots:
    r"""Find roots of the drift b near each row of coordinates, all rows at once, by Levenberg-Marquardt steps.

    .. math:: x \leftarrow x - (J^\top J + \mu)^{-1} J^\top b,

    with the damping :math:`\mu` small where steps succeed. Near a manifold of roots, where J is singular, they go to a nearby
    root. Where this leads far away or nowhere, small coordinates are set to zero for a second search: drifts of relu units
    jump there, and are zero in between.
    """
    first = _search(system, x, steps)
    distance = lambda roots, x: np.where(roots.found, np.linalg.norm(roots.x - x, axis=1), np.inf)
    size = np.abs(x).max(1, keepdims=True)
    snapped = np.where(np.abs(x) < SNAP * size, 0.0, x)
    lost = np.flatnonzero((distance(first, x) > SNAP * size[:, 0]) & np.isfinite(x).all(1) & (snapped != x).any(1))
    if not lost.size:
        return first
    again = _search(system, snapped[lost], steps)
    nearer = distance(again, x[lost]) < distance(first, x)[lost]
    for whole, part in zip(first, again, strict=True):
        whole[lost[nearer]] = part[nearer]
    return first


def settle(system: System, x: np.ndarray, blocks: int = BLOCKS) -> np.ndarray:
    """Rows of coordinates carried by the flow until they rest, or for `blocks` times 32 steps.

    The steps are Heun's, each of the length 1 over the norm of the Jacobian, which is renewed before every block. A field that
    slides along a kink jumps from one side to the other; a few blocks of shorter steps leave it close to the kink.
    """
    x, active = x.copy(), np.arange(len(x))
    drifts, jacobians, carried = (in_chunks(f, system) for f in (System.drift, System.jacobian, _heun))
    for length in [1.0] * blocks + [FINE] * FINE_BLOCKS:
        drift, J = drifts(x[active]), jacobians(x[active])
        rate = np.linalg.norm(J, axis=(1, 2)) + np.finfo(float).tiny
        with np.errstate(invalid="ignore"):
            moves = np.linalg.norm(drift, axis=1) > STILL * rate * (1 + np.linalg.norm(x[active], axis=1))
        active, rate = active[moves], rate[moves]
        if not active.size:
            break
        x[active] = carried((x[active], length / rate))
    return x


def _search(system: System, x: np.ndarray, steps: int) -> Roots:
    if not len(x):
        return Roots.none(system.size)
    end, drift, jacobian = _levenberg_marquardt(system, x, steps)
    residual, size = np.linalg.norm(drift, axis=1), np.linalg.norm(end, axis=1)
    with np.errstate(invalid="ignore"):
        found = (residual <= FIXED * np.linalg.norm(jacobian, axis=(1, 2)) * (1 + size)) & (size < FAR)
    found[found] = system.exists(end[found])
    return Roots(end, residual, jacobian, found)


def _levenberg_marquardt(system: System, x: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x, drift, Jacobian) where the search from each row ends. Only steps that succeed need the Jacobian."""
    count, n = x.shape
    x, y, mu, active = x.copy(), x.copy(), np.full(count, 1e-2), np.arange(count)
    drift, J = np.full((count, n), np.inf), np.zeros((count, n, n))
    drifts, jacobians = in_chunks(System.drift, system), in_chunks(System.jacobian, system)
    squares = lambda rows: (rows**2).sum(1)
    with np.errstate(invalid="ignore", over="ignore"):
        for _ in range(steps + 1):
            there = drifts(y[active])
            better = squares(there) < squares(drift[active])
            new = active[better]
            x[new], drift[new] = y[new], there[better]
            if new.size:
                J[new] = jacobians(y[new])
            mu[active] = np.where(better, mu[active] / 10, 5 * mu[active])
            scale = np.linalg.norm(J[active], axis=(1, 2)) * (1 + np.linalg.norm(x[active], axis=1))
            done = squares(drift[active]) <= (np.where(better, 1e-14, ROUNDING) * scale) ** 2
            active = active[~done & (mu[active] < 1e6)]
            if not active.size:
                break
            normal, slope = J[active].mT @ J[active], J[active].mT @ drift[active, :, None]
            damping = mu[active] * np.trace(normal, axis1=1, axis2=2) / n + 1e-30
            y[active] = x[active] - _solved(normal + damping[:, None, None] * np.eye(n), slope)[..., 0]
    return x, drift, J


def _solved(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of many systems at once; not a number for those that are singular."""
    try:
        return np.linalg.solve(A, b)
    except np.linalg.LinAlgError:
        if len(A) == 1:
            return np.full(b.shape, np.nan)
        return np.concatenate([_solved(*half) for half in zip(np.array_split(A, 2), np.array_split(b, 2), strict=True)])


def _heun(system: System, row: tuple[Float[Array, " n"], Float[Array, ""]]) -> Float[Array, " n"]:
    """The state after a block of steps of a given length. The two drifts of a step are one loop: half of the code."""
    x, h = row

    def step(x, _):
        def stage(drifts, _):
            last, total = drifts
            drift = system.drift(x + h * last)
            return (drift, total + drift), None

        nothing = jnp.zeros_like(x)
        (_, total), _ = lax.scan(stage, (nothing, nothing), length=2)
        return x + h / 2 * total, None

    return lax.scan(step, x, length=BLOCK)[0]
