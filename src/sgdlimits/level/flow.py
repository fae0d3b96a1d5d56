"""The flow of the ODE as a map that can be differentiated."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from sgdlimits.domain import checked
from sgdlimits.level.solve import vector_field
from sgdlimits.problem.base import Problem


@checked
def flow(problem: Problem, stats: PyTree, t, *, corrector: bool = True, rtol: float = 1e-9, atol: float = 1e-11) -> PyTree:
    """The statistics at time `t` of the ODE's solution that starts from `stats`, differentiable in all of them.

    Parameters
    ----------
    problem : any problem; its numbers may be traced, so that `jax.grad` with respect to the learning rate works
    stats : statistics of one run, without a batch axis (use `jax.vmap` for many)
    t : time in samples per dimension: one number, or increasing numbers, which put an axis of times in front

    Examples
    --------
    >>> import sgdlimits as sl
    >>> start = sl.Overlaps([1.0], [[0.1]], [[1.0]])
    >>> overlap = lambda lr: sl.flow(sl.presets.phase_retrieval(lr=lr), start, 20.0).M[0, 0]
    >>> bool(overlap(0.05) > 0.1)               # and jax.grad(overlap)(0.05) is its slope
    True
    """
    import diffrax

    t = jnp.asarray(t, float)
    times = jnp.atleast_1d(t)
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: vector_field(problem, corrector, t)(y)),
        diffrax.Dopri8(),
        t0=0.0,
        t1=times[-1],
        dt0=None,
        y0=stats,
        saveat=diffrax.SaveAt(ts=times),
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=atol),
        max_steps=100_000,
    )
    return solution.ys if t.ndim else jax.tree.map(lambda leaf: leaf[0], solution.ys)
