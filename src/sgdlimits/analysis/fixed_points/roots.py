"""Roots of the drift near given points."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float
from scipy.optimize import root

from sgdlimits.analysis.fixed_points.system import System, in_chunks

STEPS = 60
FIXED = 1e-9
"""A root's drift is smaller than this, relative to the Jacobian times the size of the point."""
SNAP = 0.04
"""Coordinates below this share of the largest are set to zero for a second search."""
FAR = 1e6
PRECISE = {"xtol": 1e-13, "ftol": 1e-13}


class Roots(NamedTuple):
    """Where the search from each row ended, the norm of the drift there, and whether this is a root that exists."""

    x: np.ndarray
    residual: np.ndarray
    found: np.ndarray


def roots_from(system: System, x: np.ndarray) -> Roots:
    """Roots from starts that may be far: MINPACK's Levenberg-Marquardt (SciPy) from each row, then `roots_near` its end."""
    drift = lambda row: np.asarray(_drift(system, row))
    jacobian = lambda row: np.asarray(_jacobian(system, row))
    ends = np.stack([root(drift, row, jac=jacobian, method="lm", options=PRECISE).x for row in x])
    return roots_near(system, np.where(np.isfinite(ends), ends, x))


def roots_near(system: System, x: np.ndarray, steps: int = STEPS) -> Roots:
    r"""Roots of the drift b near each row of coordinates, all rows at once, by steps of Levenberg and Marquardt,

    .. math:: x \leftarrow x - (J^\top J + \mu)^{-1} J^\top b,

    with the damping :math:`\mu` small where steps succeed. Near a manifold of roots, where J is singular, they go to a nearby
    root. Where this leads far away or nowhere, small coordinates are set to zero for a second search: drifts of relu units
    jump there, and are zero in between.
    """
    first = _search(system, x, steps)
    distance = lambda roots, x: np.where(roots.found, np.linalg.norm(roots.x - x, axis=1), np.inf)
    size = np.abs(x).max(1, keepdims=True)
    lost = np.flatnonzero((distance(first, x) > SNAP * size[:, 0]) & np.isfinite(x).all(1))
    if not lost.size:
        return first
    again = _search(system, np.where(np.abs(x[lost]) < SNAP * size[lost], 0.0, x[lost]), steps)
    nearer = distance(again, x[lost]) < distance(first, x)[lost]
    for whole, part in zip(first, again, strict=True):
        whole[lost[nearer]] = part[nearer]
    return first


def linearised(system: System, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(drift, Jacobian) at each row."""
    return in_chunks(_levenberg_marquardt, system, x, jnp.asarray(0))[1:]


def _search(system: System, x: np.ndarray, steps: int) -> Roots:
    end, drift, jacobian = in_chunks(_levenberg_marquardt, system, x, jnp.asarray(steps))
    residual, size = np.linalg.norm(drift, axis=1), np.linalg.norm(end, axis=1)
    with np.errstate(invalid="ignore"):
        found = (residual <= FIXED * np.linalg.norm(jacobian, axis=(1, 2)) * (1 + size)) & (size < FAR)
    found[found] = system.exists(end[found])
    return Roots(end, residual, found)


@eqx.filter_jit
def _levenberg_marquardt(system: System, x: Float[Array, "rows n"], steps: Array):
    """(x, drift, Jacobian) where the search from each row ends."""

    def search(x):
        def step(state):
            (x, drift, J), y, mu, k = state
            there, slope = system.linear(y)
            better = there @ there < drift @ drift
            x, drift, J = jax.tree.map(lambda new, old: jnp.where(better, new, old), (y, there, slope), (x, drift, J))
            mu, normal = jnp.where(better, mu / 10, 5 * mu), J.T @ J
            damped = normal + (mu * jnp.trace(normal) / x.size + 1e-30) * jnp.eye(x.size)
            return (x, drift, J), x - jax.scipy.linalg.solve(damped, J.T @ drift, assume_a="pos"), mu, k + 1

        def goes_on(state):
            (x, drift, J), _, mu, k = state
            done = drift @ drift <= (1e-14 * jnp.linalg.norm(J) * (1 + jnp.linalg.norm(x))) ** 2
            return (k <= steps) & ~done & (mu < 1e6)

        nowhere = (x, jnp.full(x.shape, jnp.inf), jnp.zeros((x.size, x.size)))
        return lax.while_loop(goes_on, step, (nowhere, x, jnp.asarray(1e-2), 0))[0]

    return system.problem.over_runs(search, x)


@eqx.filter_jit
def _drift(system: System, x: Float[Array, " n"]) -> Float[Array, " n"]:
    return system.drift(x)


@eqx.filter_jit
def _jacobian(system: System, x: Float[Array, " n"]) -> Float[Array, "n n"]:
    return jax.jacfwd(system.drift)(x)
