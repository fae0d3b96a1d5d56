"""Whether statistics, and the parts of a problem, belong together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sgdlimits.algorithm.base import Algorithm, check_memory
from sgdlimits.errors import BadInput, in_short, is_traced
from sgdlimits.inputs import Inputs
from sgdlimits.model.loss import Loss
from sgdlimits.model.network import TAKEN, AnyNetwork
from sgdlimits.model.target import ClassLabels, Target
from sgdlimits.problem.base import check_arrays
from sgdlimits.statistics.frame import frame_of
from sgdlimits.statistics.overlaps import STUDENT, Overlaps, Scalars


def check_shapes(problem: Any, stats: Any) -> None:
    """Raise `BadInput` unless these are overlaps of one run of the problem's width, traced or not."""
    check_kind(problem, stats)
    p, k, M, Q = problem.network.width, problem.target.teachers, np.shape(stats.M), np.shape(stats.Q)
    n = p * len(stats.names)
    if ((n, k), (n, n)) != (M, Q):
        raise BadInput(
            f"M must have shape ({n}, {k}) and Q ({n}, {n}) for one run of width {p}; got {M} and {Q}. "
            "Give statistics of these shapes, and use jax.vmap for many runs."
        )


def check_statistics(problem: Any, stats: Overlaps) -> None:
    """Raise `BadInput` unless weights of the problem have these statistics, of a batch of runs, runs first."""
    p, k = problem.network.width, problem.target.teachers
    check_kind(problem, stats)
    problem._check_names(stats)
    n = p * len(stats.names)
    shapes = {name: np.shape(value) for name, value in _named(problem.network.initial(problem.initial.second)).items()}
    values = {**_named(stats.a), "M": stats.M, "Q": stats.Q}
    check_arrays(values, {**shapes, "M": (n, k), "Q": (n, n)}, p, k, "statistics")
    runs = {name: len(value) for name, value in values.items()}
    if len(set(runs.values())) > 1:
        each = ", ".join(f"{name} of {number}" for name, number in runs.items())
        raise BadInput(f"the statistics are of different numbers of runs: {each}. Give all of the same runs.")
    Q = np.asarray(stats.Q)
    if not np.allclose(Q, np.swapaxes(Q, -1, -2), atol=1e-9):
        raise BadInput("Q must be symmetric. Give Q = U U^T for some weights U.")
    norms = np.diagonal(stats.of(STUDENT).Q, axis1=-2, axis2=-1)
    if problem.algorithm.sphere and not np.allclose(norms, 1.0, atol=1e-9):
        raise BadInput(
            f"sphere=True keeps every norm at 1, but the start has Q_jj = {norms.ravel()[np.argmax(abs(norms - 1))]:.6g}. "
            "Give Q with ones on its diagonal, or sphere=False."
        )
    frame_of(stats, problem.frame, n)


def check_kind(problem: Any, stats: Any) -> None:
    """Overlaps, with the scalars of the network."""
    if not isinstance(stats, Overlaps):
        raise BadInput(f"the statistics must be Overlaps(a, M, Q); got {in_short(stats)}. Give those.")
    scalars, plain = problem.network.initial(problem.initial.second), not isinstance(stats.a, dict)
    if isinstance(scalars, dict) and (plain or set(stats.a) != set(scalars)):
        got = "one array" if plain else ", ".join(stats.a)
        raise BadInput(f"the scalars of the network are {', '.join(scalars)}; got {got}. Give a dictionary of these as a.")
    if not plain and not isinstance(scalars, dict):
        raise BadInput(f"a must be one array for a plain second layer; got {', '.join(stats.a)}. Give an array.")


def _named(scalars: Scalars) -> dict[str, Any]:
    """The scalars by name, a second layer as `a`."""
    return scalars if isinstance(scalars, dict) else {"a": scalars}


def check_parts(data: Inputs, target: Target, network: AnyNetwork, loss: Callable, algorithm: Algorithm) -> None:
    """Raise `BadInput` where data, target, loss and outputs do not fit each other, or learning rates not the scalars."""
    data.check(target.teachers)
    if isinstance(target.readout, ClassLabels) and not is_traced(target.readout.labels):
        labels = np.shape(target.readout.labels)
        if labels != (data.classes,):
            raise BadInput(
                f"labels must be {data.classes} numbers, one for each class of the data; got shape {labels}. Give such labels."
            )
    if isinstance(loss, Loss):
        loss.check(data, target, network.shape)
    check_memory(algorithm, TAKEN | {"a"})
    names, known = algorithm.trained_scalars, () if network.plain else tuple(network.axes)
    if not isinstance(names, bool) and not set(names) <= set(known):
        which = (
            f"has the scalars {', '.join(known)}. Give rates for these." if known else "has one second layer. Give one rate."
        )
        raise BadInput(f"lr_second has rates for {', '.join(names)}, but the network {which}")
