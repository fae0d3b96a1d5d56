"""Stop conditions, which end a run before the last saved time."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from sgdlimits.domain import UncheckedArgument, checked
from sgdlimits.errors import BadInput, check_number, is_traced
from sgdlimits.part import Part
from sgdlimits.problem.base import Problem
from sgdlimits.statistics.overlaps import select_students
from sgdlimits.trial import try_function


class Condition(Part):
    """A stop condition: a function of the statistics of a run, and of values stored when the run starts (its memory).

    A condition implements `margin`, and `begin` if it compares a run with its start, both for one run without a batch axis, as
    pure JAX functions of the problem at the current time. Levels call `evaluate_start` or `begin_runs` once, and `stop_runs`
    after each step.
    """

    def begin(self, problem: Problem, stats: PyTree) -> PyTree:
        """Return the values that the condition stores from the initial statistics of one run, such as the initial risk."""
        return ()

    @abc.abstractmethod
    def margin(self, problem: Problem, stats: PyTree, memory: PyTree) -> Float[Array, ""] | Bool[Array, ""]:
        """Return the stop margin: a number that is at least 0, or a bool that is true, exactly when the run should stop.

        `memory` holds the values that `begin` returned.
        """

    def __call__(self, problem: Problem, stats: PyTree, memory: PyTree) -> Bool[Array, ""]:
        """Return whether a run with these statistics should stop."""
        return is_reached(self.margin(problem, stats, memory))

    def evaluate_start(self, problem: Problem, stats: PyTree, risk: Float[Array, ""] | None) -> tuple[PyTree, Bool[Array, ""]]:
        """Return the values that the condition stores at the start of one run, and whether the run stops there.

        `risk` is the initial risk if it is already known, else None.
        """
        memory = self.begin(problem, stats)
        return memory, self(problem, stats, memory)

    def over_runs(self, problem: Problem, f: Callable, batch: PyTree) -> PyTree:
        """Apply a function of one run's statistics to each run of a batch, in groups that bound the memory."""
        return problem.numerics.over_runs(f, batch)

    def begin_runs(self, problem: Problem, stats: PyTree) -> PyTree:
        """Return the values that the condition stores at the start of each run of a batch, with the runs on the first axis."""
        return self.over_runs(problem, lambda one: self.begin(problem, one), stats)

    def stop_runs(self, problem: Problem, stats: PyTree, memory: PyTree, t: Float[Array, " runs"]) -> Bool[Array, " runs"]:
        """Return whether each run of a batch should stop; `t` holds the time of each run."""
        return self.over_runs(problem, lambda one: self(problem.at(one[2]), *one[:2]), (stats, memory, t))


class Predicate(Condition):
    """A stop condition given by a user's function of the statistics of one run.

    The run stops when the function returns true, or a number of at least 0.
    """

    fn: Callable

    def margin(self, problem, stats, memory):
        return jnp.asarray(self.fn(select_students(stats)))

    def over_runs(self, problem, f, batch):
        return jax.vmap(f)(batch)  # no expectation is computed, so that no groups are needed to bound memory


class Exits(Condition):
    r"""Stop condition that holds once the excess risk of a run has lost a given fraction of its initial value.

    This is equation (9) of [1]_, with the fraction T:

    .. math:: R(t) - R_0 \le (1 - T)\,(R(0) - R_0),

    where R is the population risk and :math:`R_0` its floor (`problem.floor`) at the start. Each run is compared with its own
    start.

    References
    ----------
    .. [1] Arnaboldi, Krzakala, Loureiro, Stephan, *Escaping mediocrity: how two-layer networks learn hard generalized linear
       models*.
    """

    # check_threshold is defined below, hence the lambda
    threshold: Float[Array, ""] | float = eqx.field(converter=lambda threshold: check_threshold(threshold))

    def begin(self, problem, stats):
        return self.evaluate_start(problem, stats, None)[0]

    def evaluate_start(self, problem, stats, risk):
        risk = problem.risk(stats) if risk is None else risk  # evaluated once, for the memory and for the margin
        memory = exit_risk(risk, problem.floor, self.threshold)
        return memory, is_reached(memory - risk)

    def margin(self, problem, stats, memory):
        return memory - problem.risk(stats)


class RiskBelow(Condition):
    """Stop condition that holds once the population risk is at most `risk`, whatever its initial value.

    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval(lr=0.08)
    >>> bool(RiskBelow(0.5)(problem, sl.FixedInit(0.9).one(problem), RiskBelow(0.5).risk))
    True
    """

    risk: Float[Array, ""] | float = eqx.field(converter=lambda risk: jnp.asarray(risk, float))

    def begin(self, problem, stats):
        return self.risk

    def margin(self, problem, stats, memory):
        return memory - problem.risk(stats)


@checked
def exits(threshold: UncheckedArgument[float]) -> Exits:
    """Stop a run once its excess risk over the noise floor has fallen by the fraction `threshold` of its initial value.

    Parameters
    ----------
    threshold : fraction above 0 and at most 1; 0.1 marks the beginning of the escape from the plateau, 0.9 its end

    See Also
    --------
    sgdlimits.exit_times : the exit times of a dataset, simulated with or without this condition

    Examples
    --------
    >>> import sgdlimits as sl
    >>> problem, start = sl.presets.phase_retrieval(lr=0.08), sl.RandomInit(d=50)
    >>> runs = sl.simulate(problem, sl.Chain(d=50), start, t_max=100, runs=4, until=sl.exits(0.5))
    >>> (runs.risk[:, -1] <= runs.risk[:, 0] / 2).values.tolist()
    [True, True, True, True]
    """
    return Exits(threshold)


def exit_risk(start, floor, threshold):
    """Return the risk at which a run counts as having exited, from its initial risk, the noise floor and the threshold."""
    return start - threshold * (start - floor)


def is_reached(margin):
    """Return whether a stop condition holds, from its margin: a bool that is true, or a number that is at least 0."""
    return margin if margin.dtype == bool else margin >= 0


def as_condition(until: Any) -> Condition | None:
    """Convert the argument `until` of `simulate`, a condition or a function of the statistics, to a condition.

    None is returned unchanged.
    """
    if until is None or isinstance(until, Condition):
        return until
    if callable(until):
        return Predicate(until)
    raise BadInput(
        f"until must be a condition or a function of the statistics of one run; got {until!r}. Give, for instance, exits(0.5)."
    )


def check_condition(condition: Condition, problem: Problem, stats: PyTree, name: str = "until") -> None:
    """Raise `BadInput` unless a stop condition evaluates to one bool or number at the statistics of one run."""
    # the statistics of one run serve as its start and as its present state
    margin = lambda one: condition.margin(problem, one, condition.begin(problem, one))
    own = (condition.fn, select_students(stats)) if isinstance(condition, Predicate) else None
    fn, one = own or (margin, stats)
    try_function(name, fn, "the statistics of one run", one, truth=True, values=own is not None)


def check_threshold(threshold: Any) -> Float[Array, ""]:
    """Return the threshold as an array, or raise `BadInput` if it is not in (0, 1].

    As an array it is an argument of compiled code: another threshold needs no compilation.
    """
    check_number("threshold", threshold, above=0)
    value = threshold if is_traced(threshold) else float(threshold)
    if not is_traced(threshold) and value > 1:
        raise BadInput(f"threshold must be at most 1, the whole excess risk; got {value:g}. Give a fraction such as 0.5.")
    return jnp.asarray(value, float)
