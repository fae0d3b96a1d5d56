"""Test whether a function of the statistics is conserved: along the runs of a dataset, and along the drift at a state."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PyTree

from sgdlimits.analysis.origin import build_dataset_over_times
from sgdlimits.domain import Function, Positive, Statistics, checked
from sgdlimits.level.solver import vector_field
from sgdlimits.problem.base import Problem
from sgdlimits.run.schema import check_form, statistics
from sgdlimits.start import RandomInit
from sgdlimits.statistics.trees import count_runs, select_run, to_batch
from sgdlimits.trial import try_function

# the argument of a user's function, in errors
ONE_RUN_STATISTICS = "the statistics of one run"


@checked
def check(function: Function, dataset: xr.Dataset, *, tolerance: Positive = 1e-6) -> xr.Dataset:
    r"""Test whether a function of the statistics stays constant along the runs of a dataset; `along` tests single states.

    The dataset has `value` over run, t and component (the function's array, flattened); `drift` over run and t, the largest
    change of a component since the first saved time; per run `scale`, the largest :math:`\sum_i |x_i\,\partial f/\partial x_i|`
    of the function f of the statistics x along the run, the size of the terms whose changes must cancel; and per run
    `conserved`.

    Parameters
    ----------
    function : a JAX function of one run's statistics whose value is an array
    dataset : a dataset of `simulate`
    tolerance : largest change of the function, relative to `scale`, that counts as conserved

    >>> import sgdlimits as sl
    >>> problem = sl.presets.quadratic_network(width=2, teachers=2, lr=0.1)
    >>> runs = sl.simulate(problem, sl.ODE(), sl.OrthogonalInit(0.1), t_max=100, save=5)
    >>> bool(check(lambda stats: stats.M[0, 0] / stats.M[1, 0], runs).conserved[0])
    False
    """
    stats = statistics(check_form(dataset))
    try_function("function", function, ONE_RUN_STATISTICS, select_run(select_run(stats)), shape=None)
    value, scale = _evaluate_with_scale(function, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), stats))
    value = np.asarray(value).reshape(*dataset.risk.shape, -1)
    drift = np.abs(value - value[:, :1]).max(-1, initial=0.0)
    scale = np.asarray(scale).reshape(dataset.risk.shape).max(1)
    variables = {
        "value": (("run", "t", "component"), value, {"long_name": "the function"}),
        "drift": (("run", "t"), drift, {"long_name": "largest change of a component"}),
        "scale": ("run", scale, {"long_name": "size of the terms that must cancel"}),
        "conserved": ("run", drift.max(1) <= tolerance * scale),
    }
    return build_dataset_over_times(dataset, variables, tolerance=tolerance)


@checked
def along(
    problem: Problem,
    function: Function,
    stats: Statistics | None = None,
    *,
    corrector: bool = True,
    tolerance: Positive | None = None,
) -> xr.Dataset:
    r"""Return the rate of change :math:`\nabla f\cdot b` of a function f of the statistics x along the drift b of the ODE.

    The ODE conserves f if the rate is zero at every state. The dataset has `rate` over run and component, per unit of t; per
    run `scale`, the largest :math:`\sum_i|\partial f/\partial x_i|` times the drift of the fastest statistic; and per run
    `conserved`.

    Parameters
    ----------
    problem : any problem
    function : a JAX function of one run's statistics whose value is an array
    stats : one state, or a batch of states with runs first; None draws 16 random states with overlaps of order 1
    corrector : whether the drift contains the effect of the step size, as in `ODE`
    tolerance : largest rate, relative to `scale`, that counts as zero; None takes ten times the accuracy of the problem's
        expectations

    Examples
    --------
    Gradient flow keeps the squared norm of a squared unit minus twice the square of its second layer.

    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval(width=1, sphere=False, train_second=True)
    >>> state = sl.Overlaps([1.2], [[0.4]], [[0.9]])
    >>> balance = lambda stats: stats.Q.diagonal() - 2 * stats.a**2
    >>> bool(along(problem, balance, state, corrector=False).conserved[0])
    True
    """
    # a drift by quadrature conserves a function to its accuracy only
    tolerance = 10 * problem.numerics.tolerance if tolerance is None else tolerance
    if stats is None:
        # a dimension in which random directions have overlaps of order 1
        d = 2 * (problem.directions.width + problem.directions.fixed)
        stats = RandomInit(d).sample(problem, runs=16)
    elif count_runs(stats) is None:
        # one state becomes a batch of one
        stats = to_batch(stats)
    problem.coordinates.check(stats)
    try_function("function", function, ONE_RUN_STATISTICS, select_run(stats), shape=None)
    rate, scale = (np.asarray(each) for each in _rates_with_scale(problem, function, stats, corrector))
    variables = {
        "rate": (("run", "component"), rate, {"long_name": "rate of change along the drift"}),
        "scale": ("run", scale, {"long_name": "rate without any cancellation"}),
        "conserved": ("run", np.abs(rate).max(1, initial=0.0) <= tolerance * scale),
    }
    return xr.Dataset(variables, attrs={"tolerance": tolerance})


@eqx.filter_jit
def _evaluate_with_scale(function: Callable, stats: PyTree):
    """Return a function's value at each state, flattened, and the size of the terms whose changes cancel if it is conserved."""

    def value_and_scale(state):
        sizes = jax.tree.map(lambda slope, leaf: jnp.abs(slope * leaf), jax.jacfwd(function)(state), state)
        return jnp.ravel(function(state)), _largest_component_sum(function(state), sizes)

    return jax.vmap(value_and_scale)(stats)


@eqx.filter_jit
def _rates_with_scale(problem: Problem, function: Callable, stats: PyTree, corrector: bool):
    """Return a function's rate of change along the drift at each state, and an upper bound of the rate without cancellation."""

    def rate_and_scale(state):
        drift = vector_field(problem, corrector)(state)
        rate = jax.jvp(function, (state,), (drift,))[1]
        fastest = jnp.max(jnp.stack([jnp.abs(leaf).max() for leaf in jax.tree.leaves(drift)]))
        return jnp.ravel(rate), fastest * _largest_component_sum(rate, jax.tree.map(jnp.abs, jax.jacfwd(function)(state)))

    return problem.numerics.over_runs(rate_and_scale, stats)


def _largest_component_sum(value: Float[Array, "*shape"], terms: PyTree) -> Float[Array, ""]:
    """Sum each entry of `terms` over the axes that `value` does not have, and return the largest component of the total."""
    rows = [leaf.reshape(jnp.size(value), -1).sum(1) for leaf in jax.tree.leaves(terms)]
    return jnp.max(sum(rows))
