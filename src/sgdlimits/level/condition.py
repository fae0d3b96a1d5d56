"""When a run stops."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from sgdlimits.domain import Unchecked, checked
from sgdlimits.errors import BadInput, check_number, is_traced
from sgdlimits.part import Part
from sgdlimits.problem.base import Problem
from sgdlimits.statistics.overlaps import select_students
from sgdlimits.trial import try_function


class Condition(Part):
    """When a run stops: a function of its statistics, and of what was remembered of its start.

    A condition implements `margin`, and `begin` where it compares with the start, both for one run without a batch axis, as
    pure JAX functions of the problem as it is at that time. Levels call `evaluate_start` or `begin_runs` once, and `stop_runs`
    after each step.
    """

    def begin(self, problem: Problem, stats: PyTree) -> PyTree:
        """What to remember of the start of one run."""
        return ()

    @abc.abstractmethod
    def margin(self, problem: Problem, stats: PyTree, memory: PyTree) -> Float[Array, ""] | Bool[Array, ""]:
        """A number that is at least 0 where the run should stop, or a bool that is true there."""

    def __call__(self, problem: Problem, stats: PyTree, memory: PyTree) -> Bool[Array, ""]:
        """Whether the run should stop."""
        return reached(self.margin(problem, stats, memory))

    def evaluate_start(self, problem: Problem, stats: PyTree, risk: Float[Array, ""] | None) -> tuple[PyTree, Bool[Array, ""]]:
        """What to remember of the start of one run, and whether it stops there; its risk where that is known already."""
        memory = self.begin(problem, stats)
        return memory, self(problem, stats, memory)

    def over_runs(self, problem: Problem, f: Callable, batch: PyTree) -> PyTree:
        """Apply f to each run of a batch, runs first."""
        return problem.numerics.over_runs(f, batch)

    def begin_runs(self, problem: Problem, stats: PyTree) -> PyTree:
        """What to remember of the start of each run of a batch, runs first."""
        return self.over_runs(problem, lambda one: self.begin(problem, one), stats)

    def stop_runs(self, problem: Problem, stats: PyTree, memory: PyTree, t: Float[Array, " runs"]) -> Bool[Array, " runs"]:
        """Whether each run of a batch should stop, at a time for each run."""
        return self.over_runs(problem, lambda one: self(problem.at(one[2]), *one[:2]), (stats, memory, t))


class Predicate(Condition):
    """A user's own function of one run's statistics: true, or a number of at least 0, where the run should stop."""

    fn: Callable

    def margin(self, problem, stats, memory):
        return jnp.asarray(self.fn(select_students(stats)))

    def over_runs(self, problem, f, batch):
        return jax.vmap(f)(batch)


class Exits(Condition):
    r"""The excess risk has fallen by the fraction T of what it was at the start of the run: equation (9) of [1]_.

    .. math:: R(t) - R_0 \le (1 - T)\,(R(0) - R_0),

    where R is the population risk and :math:`R_0` its floor (`problem.floor`) at the start. Each run is compared with its own
    start.

    References
    ----------
    .. [1] Arnaboldi, Krzakala, Loureiro, Stephan, *Escaping mediocrity: how two-layer networks learn hard generalized linear
       models*.
    """

    threshold: Float[Array, ""] | float = eqx.field(converter=lambda threshold: check_threshold(threshold))

    def begin(self, problem, stats):
        return self.evaluate_start(problem, stats, None)[0]

    def evaluate_start(self, problem, stats, risk):
        risk = problem.risk(stats) if risk is None else risk
        memory = exit_risk(risk, problem.floor, self.threshold)
        return memory, reached(memory - risk)

    def margin(self, problem, stats, memory):
        return memory - problem.risk(stats)


@checked
def exits(threshold: Unchecked[float]) -> Exits:
    """Stop a run once its excess risk over the noise floor has fallen by the fraction `threshold` of that at its start.

    Parameters
    ----------
    threshold : T, above 0 and at most 1; 0.1 is the beginning of the escape from mediocrity, 0.9 the end

    See Also
    --------
    sgdlimits.exit_times : the exit times of a dataset, simulated with or without this

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
    """The risk at which a run that started at the risk `start` exits."""
    return start - threshold * (start - floor)


def reached(margin):
    """Where a margin, a bool or a number, says that the run should stop."""
    return margin if margin.dtype == bool else margin >= 0


def as_condition(until: Any) -> Condition | None:
    """A condition from a condition or from a user's function; None stays None."""
    if until is None or isinstance(until, Condition):
        return until
    if callable(until):
        return Predicate(until)
    raise BadInput(f"until must be a condition or a function of one run's statistics; got {until!r}. Give, say, exits(0.5).")


def check_condition(condition: Condition, problem: Problem, stats: PyTree, name: str = "until") -> None:
    """Raise `BadInput` unless the condition can be asked at the statistics of one run and answers with one bool or number."""
    margin = lambda one: condition.margin(problem, one, condition.begin(problem, one))
    own = (condition.fn, select_students(stats)) if isinstance(condition, Predicate) else None
    fn, one = own or (margin, stats)
    try_function(name, fn, "the statistics of one run", one, truth=True, values=own is not None)


def check_threshold(threshold: Any) -> Float[Array, ""]:
    """The threshold as an array, which compiled code takes as an argument, or `BadInput` where it is no fraction."""
    check_number("threshold", threshold, above=0)
    value = threshold if is_traced(threshold) else float(threshold)
    if not is_traced(threshold) and value > 1:
        raise BadInput(f"threshold must be at most 1, all of the excess risk; got {value:g}. Give a fraction such as 0.5.")
    return jnp.asarray(value, float)
