"""Roots of the drift near given points, and states at which the ODE's flow comes to rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float
from scipy.optimize import root

from sgdlimits.analysis.fixed_points.system import System, map_in_chunks

MAX_STEPS = 60
"""Levenberg-Marquardt steps of one search."""
ROOT_TOLERANCE = 1e-9
"""Largest drift of a root, relative to the norm of the Jacobian times (1 + norm of the point)."""
ROUNDING = 1e-12
"""Relative drift below which a search ends as soon as a step no longer decreases the drift."""
SNAP_SHARE = 0.04
"""Coordinates below this share of the largest are set to zero for a second search."""
MAX_NORM = 1e6
"""Largest norm of a root; searches that end farther away have diverged."""
ZERO_EIGENVALUE = 1e-6
"""Largest |eigenvalue|, relative to the norm of the Jacobian, that counts as zero."""
METHODS = {False: ("lm", {"xtol": 1e-13, "ftol": 1e-13}), True: ("hybr", {"xtol": 1e-4, "maxfev": 100})}
"""MINPACK method and options, by whether drifts are costly: Powell's `hybr` recomputes the Jacobian rarely."""
MAX_BLOCKS, BLOCK_STEPS = 64, 32
"""Largest number of blocks of the flow, and Heun steps in each; the step size is chosen anew for every block."""
FINE_LENGTH, FINE_BLOCKS = 1 / 8, 4
"""Length of the final, shorter steps, relative to the others, and their number of blocks."""
REST_TOLERANCE = 1e-8
"""Largest drift of a state at rest, relative to the norm of the Jacobian times (1 + norm of the state)."""


class Roots(NamedTuple):
    """End points of searches for roots of the drift, one per row.

    Parameters
    ----------
    x : coordinates, shape (rows, n)
    residual : norm of the drift, shape (rows,)
    jacobian : Jacobian of the drift, shape (rows, n, n)
    found : whether the end point is a root with statistics that the problem allows, shape (rows,)
    """

    x: np.ndarray
    residual: np.ndarray
    jacobian: np.ndarray
    found: np.ndarray

    def at(self, rows: np.ndarray) -> Roots:
        """Return the selected rows, by indices or a mask."""
        return Roots(*(leaf[rows] for leaf in self))

    @classmethod
    def join(cls, parts: Sequence[Roots]) -> Roots:
        """Concatenate the rows of several `Roots`."""
        return cls(*(np.concatenate(leaves) for leaves in zip(*parts, strict=True)))

    @classmethod
    def empty(cls, n: int) -> Roots:
        """Return `Roots` with no rows, for n coordinates."""
        return cls(np.empty((0, n)), np.empty(0), np.empty((0, n, n)), np.empty(0, bool))

    @property
    def spectra(self) -> tuple[np.ndarray, np.ndarray]:
        """Pair `(eigenvalues, zero)`: the spectrum of each Jacobian by falling real part, and the bound that counts as zero."""
        values = np.linalg.eigvals(self.jacobian)
        values = np.take_along_axis(values, np.argsort(-values.real, axis=1, kind="stable"), 1)
        return values, ZERO_EIGENVALUE * np.linalg.norm(self.jacobian, axis=(1, 2))


def roots_from(system: System, x: np.ndarray) -> Roots:
    """Find roots from starts that may be far: a MINPACK method (SciPy) from each row, then `roots_near` its end point."""
    method, options = METHODS[system.costly]
    drift_at, jacobian_at = system.compile(System.drift), system.compile(System.jacobian)

    drift = lambda row: np.asarray(drift_at(row))
    jacobian = lambda row: np.asarray(jacobian_at(row))
    ends = []
    for row in x:
        ends.append(root(drift, row, jac=jacobian, method=method, options=options).x)
        system.watch.tick()
    # MINPACK may end at NaN; such a search goes on from its start
    return roots_near(system, np.where(np.isfinite(ends), ends, x))


def roots_near(system: System, x: np.ndarray, steps: int = MAX_STEPS) -> Roots:
    r"""Find roots of the drift b near each row of coordinates, all rows at once, by Levenberg-Marquardt steps.

    .. math:: x \leftarrow x - (J^\top J + \mu)^{-1} J^\top b,

    with the damping :math:`\mu` small where steps succeed. Near a manifold of roots, where J is singular, the steps lead to a
    nearby root. Where a search ends far away or fails, it is repeated with small coordinates set to zero: drifts of relu units
    jump there, and are zero in between.
    """
    first = _search(system, x, steps)
    distance = lambda roots, x: np.where(roots.found, np.linalg.norm(roots.x - x, axis=1), np.inf)
    size = np.abs(x).max(1, keepdims=True)
    snapped = np.where(np.abs(x) < SNAP_SHARE * size, 0.0, x)
    # searches that failed or went far, and whose start has small coordinates
    lost = np.flatnonzero((distance(first, x) > SNAP_SHARE * size[:, 0]) & np.isfinite(x).all(1) & (snapped != x).any(1))
    if not lost.size:
        return first
    again = _search(system, snapped[lost], steps)
    nearer = distance(again, x[lost]) < distance(first, x)[lost]
    for whole, part in zip(first, again, strict=True):
        whole[lost[nearer]] = part[nearer]
    return first


def flow_to_rest(system: System, x: np.ndarray, blocks: int = MAX_BLOCKS) -> np.ndarray:
    """Integrate the ODE from each row of coordinates until it rests, or for `blocks` times 32 steps; return the end points.

    The steps are Heun's, of length 1 / norm of the Jacobian, which is recomputed before every block. A field that slides along
    a kink jumps from one side to the other; a few blocks of shorter steps leave it close to the kink.
    """
    x, active = x.copy(), np.arange(len(x))
    drifts, jacobians, advance = (map_in_chunks(f, system) for f in (System.drift, System.jacobian, _advance_by_heun))
    for length in [1.0] * blocks + [FINE_LENGTH] * FINE_BLOCKS:
        drift, J = drifts(x[active]), jacobians(x[active])
        # tiny: a Jacobian of zero must not divide by zero
        rate = np.linalg.norm(J, axis=(1, 2)) + np.finfo(float).tiny
        with np.errstate(invalid="ignore"):
            # NaN compares false: diverged rows are dropped
            moves = np.linalg.norm(drift, axis=1) > REST_TOLERANCE * rate * (1 + np.linalg.norm(x[active], axis=1))
        active, rate = active[moves], rate[moves]
        if not active.size:
            break
        x[active] = advance((x[active], length / rate))
    return x


def _search(system: System, x: np.ndarray, steps: int) -> Roots:
    """Run one Levenberg-Marquardt search from each row, and mark which end points are roots."""
    if not len(x):
        return Roots.empty(system.size)
    end, drift, jacobian = _levenberg_marquardt(system, x, steps)
    residual, size = np.linalg.norm(drift, axis=1), np.linalg.norm(end, axis=1)
    with np.errstate(invalid="ignore"):
        # diverged searches compare NaN, which is false
        found = (residual <= ROOT_TOLERANCE * np.linalg.norm(jacobian, axis=(1, 2)) * (1 + size)) & (size < MAX_NORM)
    # the drift may vanish outside the statistics of weights
    found[found] = system.are_allowed(end[found])
    return Roots(end, residual, jacobian, found)


def _levenberg_marquardt(system: System, x: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (x, drift, Jacobian) at the end of the search from each row; only successful steps evaluate the Jacobian."""
    count, n = x.shape
    x, y, mu, active = x.copy(), x.copy(), np.full(count, 1e-2), np.arange(count)
    drift, J = np.full((count, n), np.inf), np.zeros((count, n, n))
    drifts, jacobians = map_in_chunks(System.drift, system), map_in_chunks(System.jacobian, system)
    squares = lambda rows: (rows**2).sum(1)
    with np.errstate(invalid="ignore", over="ignore"):
        for _ in range(steps + 1):
            there = drifts(y[active])
            better = squares(there) < squares(drift[active])
            # rejected steps keep their Jacobian
            new = active[better]
            x[new], drift[new] = y[new], there[better]
            if new.size:
                J[new] = jacobians(y[new])
            mu[active] = np.where(better, mu[active] / 10, 5 * mu[active])
            # after a successful step only a drift far below rounding ends the search: steps may still converge quadratically
            scale = np.linalg.norm(J[active], axis=(1, 2)) * (1 + np.linalg.norm(x[active], axis=1))
            done = squares(drift[active]) <= (np.where(better, 1e-14, ROUNDING) * scale) ** 2
            active = active[~done & (mu[active] < 1e6)]
            if not active.size:
                break
            normal, slope = J[active].mT @ J[active], J[active].mT @ drift[active, :, None]
            # relative to the mean curvature; 1e-30 where the Jacobian is zero
            damping = mu[active] * np.trace(normal, axis1=1, axis2=2) / n + 1e-30
            y[active] = x[active] - _solve_each(normal + damping[:, None, None] * np.eye(n), slope)[..., 0]
    return x, drift, J


def _solve_each(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Solve many linear systems, shapes (rows, n, n) and (rows, n, 1); NaN where the matrix is singular."""
    try:
        return np.linalg.solve(A, b)
    except np.linalg.LinAlgError:
        if len(A) == 1:
            return np.full(b.shape, np.nan)
        # NumPy rejects the whole stack for one singular matrix: bisect
        return np.concatenate([_solve_each(*half) for half in zip(np.array_split(A, 2), np.array_split(b, 2), strict=True)])


def _advance_by_heun(system: System, row: tuple[Float[Array, " n"], Float[Array, ""]]) -> Float[Array, " n"]:
    """Return the state after a block of Heun steps; `row` is the pair (state, step size)."""
    x, h = row

    def step(x, _):
        def stage(drifts, _):
            last, total = drifts
            drift = system.drift(x + h * last)
            return (drift, total + drift), None

        zeros = jnp.zeros_like(x)
        # a scan over the two stages compiles the drift once
        (_, total), _ = lax.scan(stage, (zeros, zeros), length=2)
        return x + h / 2 * total, None

    return lax.scan(step, x, length=BLOCK_STEPS)[0]
