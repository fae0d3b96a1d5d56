"""Roots of the drift near given points, and where the ODE's flow comes to rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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
    drift_at, jacobian_at = system.at_once(System.drift), system.at_once(_jacobian)
    drift = lambda row: np.asarray(drift_at(row))
    jacobian = lambda row: np.asarray(jacobian_at(row))
    ends = []
    for row in x:
        ends.append(root(drift, row, jac=jacobian, method=method, options=options).x)
        system.watch.tick()
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
    for length in [1.0] * blocks + [FINE] * FINE_BLOCKS:
        _, drift, J = in_chunks(_levenberg_marquardt, system, x[active], np.asarray(0))
        rate = np.linalg.norm(J, axis=(1, 2)) + np.finfo(float).tiny
        with np.errstate(invalid="ignore"):
            moves = np.linalg.norm(drift, axis=1) > STILL * rate * (1 + np.linalg.norm(x[active], axis=1))
        active, rate = active[moves], rate[moves]
        if not active.size:
            break
        x[active] = in_chunks(_heun, system, (x[active], length / rate))
    return x


def _search(system: System, x: np.ndarray, steps: int) -> Roots:
    if not len(x):
        return Roots.none(system.size)
    end, drift, jacobian = in_chunks(_levenberg_marquardt, system, x, np.asarray(steps))
    residual, size = np.linalg.norm(drift, axis=1), np.linalg.norm(end, axis=1)
    with np.errstate(invalid="ignore"):
        found = (residual <= FIXED * np.linalg.norm(jacobian, axis=(1, 2)) * (1 + size)) & (size < FAR)
    found[found] = system.exists(end[found])
    return Roots(end, residual, jacobian, found)


def _levenberg_marquardt(system: System, x: Float[Array, " n"], steps: Array):
    """(x, drift, Jacobian) where the search from a row ends. One by one, only steps that succeed need the Jacobian."""

    def step(state):
        (x, drift, J), y, mu, k, _ = state
        there = system.drift(y)
        better = there @ there < drift @ drift
        J = lax.cond(better, lambda y: _jacobian(system, y), lambda _: J, y)
        x, drift = jnp.where(better, y, x), jnp.where(better, there, drift)
        mu, normal = jnp.where(better, mu / 10, 5 * mu), J.T @ J
        damped = normal + (mu * jnp.trace(normal) / x.size + 1e-30) * jnp.eye(x.size)
        return (x, drift, J), x - jax.scipy.linalg.solve(damped, J.T @ drift, assume_a="pos"), mu, k + 1, better

    def goes_on(state):
        (x, drift, J), _, mu, k, better = state
        done = drift @ drift <= (jnp.where(better, 1e-14, ROUNDING) * jnp.linalg.norm(J) * (1 + jnp.linalg.norm(x))) ** 2
        return (k <= steps) & ~done & (mu < 1e6)

    nowhere = (x, jnp.full(x.shape, jnp.inf), jnp.zeros((x.size, x.size)))
    return lax.while_loop(goes_on, step, (nowhere, x, jnp.asarray(1e-2), 0, jnp.asarray(True)))[0]


def _jacobian(system: System, x: Float[Array, " n"]) -> Float[Array, "n n"]:
    return jax.jacfwd(system.drift)(x)


def _heun(system: System, row: tuple[Float[Array, " n"], Float[Array, ""]]) -> Float[Array, " n"]:
    """The state after a block of steps of a given length."""
    x, h = row

    def step(x, _):
        here = system.drift(x)
        there = system.drift(x + h * here)
        return x + h / 2 * (here + there), None

    return lax.scan(step, x, length=BLOCK)[0]
