"""Roots of the drift near given points, and states at which the ODE's flow comes to rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float
from scipy.optimize import root

from sgdlimits.analysis.fixed_points.system import DriftSystem, map_in_chunks

MAX_STEPS = 60
"""Maximum number of Levenberg-Marquardt steps in one search for a root."""
ROOT_TOLERANCE = 1e-9
"""Largest norm of the drift at a root, relative to the norm of the Jacobian times (1 + norm of the point)."""
ROUNDING_DRIFT = 1e-12
"""Relative size of the drift below which a search ends as soon as a step no longer decreases it."""
MAX_ROUNDED_SHARE = 0.04
"""Fraction of the largest coordinate below which coordinates are set to zero for a second search."""
MAX_NORM = 1e6
"""Largest norm of a root; a search that ends farther from the origin has diverged."""
ZERO_EIGENVALUE = 1e-6
"""Largest |eigenvalue|, relative to the norm of the Jacobian, that counts as zero."""
MINPACK_METHODS = {False: ("lm", {"xtol": 1e-13, "ftol": 1e-13}), True: ("hybr", {"xtol": 1e-4, "maxfev": 100})}
"""MINPACK method and its options, by whether drifts are costly: Powell's `hybr` rarely recomputes the Jacobian."""
MAX_BLOCKS, BLOCK_STEPS = 64, 32
"""Largest number of blocks in which the ODE is integrated, and number of Heun steps in a block. The step size is constant in a
block and chosen anew for each."""
FINE_STEP_LENGTH, FINE_BLOCK_COUNT = 1 / 8, 4
"""Length of the short steps at the end of the flow, relative to the preceding steps, and number of blocks of short steps."""
REST_TOLERANCE = 1e-8
"""Largest norm of the drift at a state that is at rest, relative to the norm of the Jacobian times (1 + norm of the state)."""


class Roots(NamedTuple):
    """End points of searches for roots of the drift, with drift and Jacobian at each.

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

    def select(self, rows: np.ndarray) -> Roots:
        """Return some of the end points, selected by indices or by a mask."""
        return Roots(*(leaf[rows] for leaf in self))

    @classmethod
    def join(cls, parts: Sequence[Roots]) -> Roots:
        """Concatenate several `Roots`."""
        return cls(*(np.concatenate(leaves) for leaves in zip(*parts, strict=True)))

    @classmethod
    def empty(cls, n: int) -> Roots:
        """Return `Roots` without end points, in n coordinates."""
        return cls(np.empty((0, n)), np.empty(0), np.empty((0, n, n)), np.empty(0, bool))

    @property
    def spectra(self) -> tuple[np.ndarray, np.ndarray]:
        """Eigenvalues of the Jacobian at each root by falling real part, and the threshold below which they count as zero.

        Their shapes are (rows, n) and (rows,).
        """
        values = np.linalg.eigvals(self.jacobian)
        values = np.take_along_axis(values, np.argsort(-values.real, axis=1, kind="stable"), 1)
        return values, ZERO_EIGENVALUE * np.linalg.norm(self.jacobian, axis=(1, 2))


def find_roots_from_starts(system: DriftSystem, x: np.ndarray) -> Roots:
    """Find roots of the drift from starts that may be far away, by a MINPACK method (SciPy) and then `refine_roots`."""
    method, options = MINPACK_METHODS[system.costly]
    drift_at, jacobian_at = system.compile(DriftSystem.drift), system.compile(DriftSystem.jacobian)

    drift = lambda row: np.asarray(drift_at(row))
    jacobian = lambda row: np.asarray(jacobian_at(row))
    ends = []
    for row in x:
        ends.append(root(drift, row, jac=jacobian, method=method, options=options).x)
        system.watch.tick()
    # MINPACK may end at NaN; such a search goes on from its start
    return refine_roots(system, np.where(np.isfinite(ends), ends, x))


def refine_roots(system: DriftSystem, x: np.ndarray, steps: int = MAX_STEPS) -> Roots:
    r"""Find roots of the drift b near given points, shape (rows, n), for all rows at once by Levenberg-Marquardt steps.

    .. math:: x \leftarrow x - (J^\top J + \mu)^{-1} J^\top b,

    with the Jacobian J of b and a damping :math:`\mu` that becomes small where steps succeed. Near a manifold of roots, where J
    is singular, the steps lead to a nearby root. A search that ends far away or fails is repeated with small coordinates set to
    zero, where drifts of relu units jump.
    """
    first = _search_roots(system, x, steps)
    distance = lambda roots, x: np.where(roots.found, np.linalg.norm(roots.x - x, axis=1), np.inf)
    size = np.abs(x).max(1, keepdims=True)
    snapped = np.where(np.abs(x) < MAX_ROUNDED_SHARE * size, 0.0, x)
    # searches that failed or went far, and whose start has small coordinates
    lost = np.flatnonzero((distance(first, x) > MAX_ROUNDED_SHARE * size[:, 0]) & np.isfinite(x).all(1) & (snapped != x).any(1))
    if not lost.size:
        return first
    again = _search_roots(system, snapped[lost], steps)
    nearer = distance(again, x[lost]) < distance(first, x)[lost]
    for whole, part in zip(first, again, strict=True):
        whole[lost[nearer]] = part[nearer]
    return first


def flow_to_rest(system: DriftSystem, x: np.ndarray, blocks: int = MAX_BLOCKS) -> np.ndarray:
    """Integrate the ODE from points x, shape (rows, n), until the states come to rest, and return the final states.

    At most `blocks` blocks of Heun steps are taken, of a length equal to the inverse norm of the Jacobian, which is recomputed
    before every block. A state that slides along a kink of the drift jumps from one side to the other; a few blocks of shorter
    steps at the end leave it close to the kink.
    """
    x, active = x.copy(), np.arange(len(x))
    drifts, jacobians, advance = (map_in_chunks(f, system) for f in (DriftSystem.drift, DriftSystem.jacobian, _advance_by_heun))
    for length in [1.0] * blocks + [FINE_STEP_LENGTH] * FINE_BLOCK_COUNT:
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


def _search_roots(system: DriftSystem, x: np.ndarray, steps: int) -> Roots:
    """Run one Levenberg-Marquardt search from each row of x, and mark which of the end points are roots of the drift."""
    if not len(x):
        return Roots.empty(system.size)
    end, drift, jacobian = _levenberg_marquardt(system, x, steps)
    residual, size = np.linalg.norm(drift, axis=1), np.linalg.norm(end, axis=1)
    with np.errstate(invalid="ignore"):
        # diverged searches compare NaN, which is false
        found = (residual <= ROOT_TOLERANCE * np.linalg.norm(jacobian, axis=(1, 2)) * (1 + size)) & (size < MAX_NORM)
    # the drift may vanish outside the statistics of weights
    found[found] = system.select_admissible(end[found])
    return Roots(end, residual, jacobian, found)


def _levenberg_marquardt(system: DriftSystem, x: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the end points of Levenberg-Marquardt searches from the rows of x, with the drift and the Jacobian at each.

    The Jacobian is evaluated after successful steps only.
    """
    count, n = x.shape
    x, y, mu, active = x.copy(), x.copy(), np.full(count, 1e-2), np.arange(count)
    drift, J = np.full((count, n), np.inf), np.zeros((count, n, n))
    drifts, jacobians = map_in_chunks(DriftSystem.drift, system), map_in_chunks(DriftSystem.jacobian, system)
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
            done = squares(drift[active]) <= (np.where(better, 1e-14, ROUNDING_DRIFT) * scale) ** 2
            active = active[~done & (mu[active] < 1e6)]
            if not active.size:
                break
            normal, slope = J[active].mT @ J[active], J[active].mT @ drift[active, :, None]
            # relative to the mean curvature; 1e-30 where the Jacobian is zero
            damping = mu[active] * np.trace(normal, axis1=1, axis2=2) / n + 1e-30
            y[active] = x[active] - _solve_each(normal + damping[:, None, None] * np.eye(n), slope)[..., 0]
    return x, drift, J


def _solve_each(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Solve a stack of linear systems, shapes (rows, n, n) and (rows, n, 1); NaN where the matrix is singular."""
    try:
        return np.linalg.solve(A, b)
    except np.linalg.LinAlgError:
        if len(A) == 1:
            return np.full(b.shape, np.nan)
        # NumPy rejects the whole stack for one singular matrix: bisect
        return np.concatenate([_solve_each(*half) for half in zip(np.array_split(A, 2), np.array_split(b, 2), strict=True)])


def _advance_by_heun(system: DriftSystem, row: tuple[Float[Array, " n"], Float[Array, ""]]) -> Float[Array, " n"]:
    """Return the state after a block of Heun steps of the ODE, from the pair `row` of state and step size."""
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
