"""Where the ODE's flow comes to rest."""

from __future__ import annotations

import equinox as eqx
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from sgdlimits.analysis.fixed_points.roots import linearised
from sgdlimits.analysis.fixed_points.system import System, in_chunks

STEPS = 32
BLOCKS = 64
FINE, FINE_BLOCKS = 1 / 8, 4
STILL = 1e-8
"""A state is at rest where its drift is below this, relative to the Jacobian times its size."""


def settle(system: System, x: np.ndarray, blocks: int = BLOCKS) -> np.ndarray:
    """Rows of coordinates carried by the flow until they rest, or for `blocks` times 32 steps.

    The steps are Heun's, each of the length 1 over the norm of the Jacobian, which is renewed before every block. A field that
    slides along a kink jumps from one side to the other; a few blocks of shorter steps leave it close to the kink.
    """
    x, active = x.copy(), np.arange(len(x))
    for length in [1.0] * blocks + [FINE] * FINE_BLOCKS:
        drift, J = linearised(system, x[active])
        rate = np.linalg.norm(J, axis=(1, 2)) + np.finfo(float).tiny
        with np.errstate(invalid="ignore"):
            moves = np.linalg.norm(drift, axis=1) > STILL * rate * (1 + np.linalg.norm(x[active], axis=1))
        active, rate = active[moves], rate[moves]
        if not active.size:
            break
        x[active] = in_chunks(_heun, system, (x[active], length / rate))
    return x


@eqx.filter_jit
def _heun(system: System, rows: tuple[Float[Array, "rows n"], Float[Array, " rows"]]) -> Float[Array, "rows n"]:
    """States after a block of steps of the given lengths."""

    def flow(row):
        x, h = row

        def step(x, _):
            here = system.drift(x)
            there = system.drift(x + h * here)
            return x + h / 2 * (here + there), None

        return lax.scan(step, x, length=STEPS)[0]

    return system.over_rows(flow, rows)
