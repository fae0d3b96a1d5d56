"""Problems of projections: everything depends on the input through a few of its fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sgdlimits.algorithm.base import Algorithm
from sgdlimits.algorithm.limit import StepMean, check_limit, extended, is_timed, linear_changes
from sgdlimits.domain import Positive, checked
from sgdlimits.expectation import Expectation, as_expectation, choose
from sgdlimits.expectation.base import linearise_increment, freeze_zero_units
from sgdlimits.expectation.choose import for_tests
from sgdlimits.expectation.class_sums import has_tasks, risk_by_class, rule_of
from sgdlimits.expectation.gaussian import Estimate, Rule, Sobol
from sgdlimits.expectation.nodes import MAX_NODES_AT_ONCE
from sgdlimits.expectation.right_class import accuracy, is_closed
from sgdlimits.inputs import Inputs, gaussian
from sgdlimits.model.loss import Loss, as_loss
from sgdlimits.model.network import AnyNetwork
from sgdlimits.model.sample import Model
from sgdlimits.model.target import Target
from sgdlimits.part import at_start
from sgdlimits.problem import accuracy as accuracy_of, fits
from sgdlimits.problem.base import NOW, Problem
from sgdlimits.problem.directions import Directions, InitialWeights
from sgdlimits.problem.numerics import Numerics
from sgdlimits.problem.overlap_coordinates import OverlapCoordinates, check_names
from sgdlimits.statistics.overlaps import STUDENT, Overlaps, symmetric
from sgdlimits.statistics.products import Moments
from sgdlimits.statistics.trees import add
from sgdlimits.text import count

CLASS_NODES = Sobol(10)  # leaves 1e-3 of the accuracy of XOR
"""Where inputs are classified, unless the problem's expectations are sums over nodes."""


class ModelProblem(Problem):
    """A problem made of the model of one sample and an algorithm, whose parts are at hand by name."""

    model: Model
    algorithm: Algorithm

    @property
    def data(self) -> Inputs:
        return self.model.data

    @property
    def target(self) -> Target:
        return self.model.target

    @property
    def network(self) -> AnyNetwork:
        return self.model.network

    @property
    def loss(self) -> Loss:
        return self.model.loss

    @property
    def frame(self) -> Float[Array, "k k"]:
        """B, the fixed directions in their orthonormal frame: P = B B^T."""
        return self.model.frame

    @property
    def sphere(self) -> bool:
        return self.algorithm.sphere

    @property
    def trains_second(self) -> bool:
        return self.algorithm.trains_second

    def __repr__(self) -> str:
        data, target, network = self.data, self.target, self.network
        inputs = "standard normal inputs" if data.centred else f"inputs of {count(data.classes, 'class', 'classes')}"
        unit = "field" if network.activation is None else network.activation.as_argument().strip("'") + " unit"
        learner = count(network.width, unit)
        verb = "learns" if network.width == 1 else "learn"
        learnt = f"{learner} {verb} {count(target.teachers, 'direction')} from {inputs}"
        return f"{super().__repr__()}\n  {learnt}; {self.loss.as_argument()}, {type(self.algorithm).__name__}"


@checked
class ProjectionProblem(ModelProblem):
    r"""A network that learns a target from Gaussian data by one-pass SGD, from its parts.

    With fields :math:`\lambda_j = u_j\cdot x`, :math:`\lambda^*_r = e_r\cdot x`, loss l and
    :math:`G = \partial l/\partial\lambda` the statistics obey, as :math:`d\to\infty`,

    .. math::
        \dot M &= -\text{lr}\,(E[G\lambda^{*\top}] + \text{ridge}\, M), \\
        \dot Q &= -\text{lr}\,(E[G\lambda^\top + \lambda G^\top] + 2\,\text{ridge}\, Q) + \text{lr}^2\sigma^2 E[GG^\top], \\
        \dot a &= -\text{lr}_2\,(E[\partial_a l] + \text{ridge}\, a),

    for plain SGD, where the last term of Q is the corrector and the rest the population drift. On the sphere the change of each
    norm is taken out: :math:`\dot M_{jr} \mathrel{-}= M_{jr}\dot Q_{jj}/2` and
    :math:`\dot Q_{jl} \mathrel{-}= Q_{jl}(\dot Q_{jj} + \dot Q_{ll})/2`.

    Parameters
    ----------
    target : `Target`, the labels
    network : `TwoLayer`, or any function of fields and scalars as a `Network`
    loss : `SquaredLoss`, `CrossEntropy`, `SoftmaxCrossEntropy`, or a JAX function loss(prediction, label)
    algorithm : how weights move, `OnePassSGD` or another `Algorithm`
    data : `Inputs`, such as a `mixture`; standard normal inputs unless given
    expectation : how expectations are computed: None chooses; a quadrature rule such as `GaussHermite(32)` or `Sobol(12)`, or
        an `Expectation`, overrides
    initial : the law of the start that `RandomInit` follows
    paper_time : paper time per unit of lr t; None where no paper has its own clock
    name : how the problem is called in tables and files

    Examples
    --------
    >>> import jax.numpy as jnp, sgdlimits as sl
    >>> problem = sl.ProjectionProblem(
    ...     target=sl.Target(lambda fixed: fixed[0] * fixed[1], teachers=2),
    ...     network=sl.TwoLayer(3, jnp.abs), loss=sl.SquaredLoss(), algorithm=sl.OnePassSGD(lr=0.1))
    >>> problem.drift(sl.Overlaps(jnp.ones(3), jnp.zeros((3, 2)), jnp.eye(3))).M.shape
    (3, 2)
    """

    asked: Expectation | None
    initial: InitialWeights
    t: Float[Array, ""] | float
    paper_time: float | None = eqx.field(static=True)
    name: str = eqx.field(static=True)

    recorded: ClassVar[dict[str, str]] = {"expectation": "asked"}

    def __init__(
        self,
        target: Target,
        network: AnyNetwork,
        loss: Callable,
        algorithm: Algorithm,
        *,
        data: Inputs | None = None,
        expectation: Rule | Expectation | None = None,
        initial: InitialWeights | None = None,
        paper_time: Positive | None = None,
        name: str = "projection",
    ) -> None:
        data = gaussian() if data is None else data
        fits.check_parts(data, target, network, loss, algorithm)
        self.model = Model(data, target, network, as_loss(loss, network.shape))
        self.algorithm, self.asked = algorithm, as_expectation(expectation, self.model)
        self.initial = InitialWeights(unit=algorithm.sphere) if initial is None else initial
        self.paper_time, self.name, self.t = paper_time, name, 0.0

    @property
    def expectation(self) -> Expectation:
        """How expectations are computed: as given, or else as suits the model at present."""
        return choose(at_start(self.model)) if self.asked is None else self.asked

    @property
    def coordinates(self) -> OverlapCoordinates:
        return OverlapCoordinates(self)

    @property
    def numerics(self) -> ProjectionNumerics:
        return ProjectionNumerics(self)

    @property
    def directions(self) -> Directions:
        network, algorithm = self.network, self.algorithm
        if network.one_array:
            return Directions(network.width, self.target.gram, self.initial)
        scalars = network.initial(self.initial.second)
        return Directions(network.width, self.target.gram, self.initial, scalars, tuple(algorithm.trained(scalars)))

    def at(self, t):
        now = super().at(NOW("t", t))
        return eqx.tree_at(lambda problem: problem.t, now, t) if is_timed(at_start(self.algorithm), at_start(self.model)) else now

    @property
    def limit(self) -> ProjectionProblem:
        """The problem as d grows, in its own statistics."""
        other = self.algorithm.limit
        check_limit(at_start(other), at_start(self.model))
        return self if other is self.algorithm else eqx.tree_at(lambda problem: problem.algorithm, self, other)

    @property
    def rate(self):
        return 1.0 if self.paper_time is None else self.paper_time * at_start(self.algorithm).lr_sample

    def with_expectation(self, expectation: Rule | Expectation) -> ProjectionProblem:
        """Return the problem with its expectations computed in another way."""
        asked = as_expectation(expectation, self.model)
        return eqx.tree_at(lambda problem: problem.asked, self, asked, is_leaf=lambda node: node is None)

    @checked
    def with_algorithm(self, algorithm: Algorithm | None) -> ProjectionProblem:
        """The problem with another algorithm; None leaves it. On the sphere random starts have norm 1."""
        if algorithm is None:
            return self
        fits.check_parts(self.data, self.target, self.network, self.loss, algorithm)
        initial = dataclasses.replace(self.initial, unit=self.initial.unit or algorithm.sphere)
        return eqx.tree_at(lambda problem: (problem.algorithm, problem.initial), self, (algorithm, initial))

    def _drift_parts(self, stats: Overlaps) -> tuple[Overlaps, Overlaps]:
        problem, stats = self.limit, symmetric(stats)
        check_names(problem.algorithm, stats)
        if not problem.algorithm.linear:
            return step_mean(problem).drift_parts(problem.t, stats)
        students = stats.of(STUDENT)
        moments = self.expectation.moments(self.model, students.a, self.model.law(students))
        moments = freeze_zero_units(self.model, jnp.diagonal(students.Q), moments)
        return linear_increments(problem, stats, extended(self.model, students, stats, moments)[0])

    def _covariance(self, stats: Overlaps) -> Float[Array, "n n"]:
        problem = self.limit
        check_names(problem.algorithm, stats)
        if not problem.algorithm.linear:
            return step_mean(problem).covariance(problem.t, stats, self.vector)
        students, column = stats.of(STUDENT), jax.tree.map(lambda leaf: leaf[..., None], stats)
        increment = lambda products: problem.vector(add(*linear_increments(problem, column, products)))
        all_fields = lambda products: extended(self.model, students, stats, products)[0]
        law = self.model.law(students)
        covariance = self.expectation.covariance(self.model, students.a, law, lambda products: increment(all_fields(products)))
        if len(stats.names) == 1:
            return covariance
        moments = self.expectation.moments(self.model, students.a, law)
        rest = self.data.squared_length * extended(self.model, students, stats, moments)[1]
        slope = linearise_increment(increment, students.a, law.shape, stats.M.shape[0]).gradient_field
        return covariance + jnp.einsum("xjm,jl,mn,yln->xy", slope, moments.gradient_gradient, rest, slope)

    def observables(self, stats):
        """The risk of averages, and where labels are classes the accuracy of students and of averages.

        An accuracy that is a sum over nodes comes with `accuracy_error`, its standard error. Where classes have readouts or
        heads of their own, `task_risk` is the risk on each class.
        """
        model = self.model.tested
        copies = [name for name in stats.names if self.algorithm.memory.get(name) == "copy"]
        shown = {f"risk_{name}": self._risk(stats.of(name)) for name in copies}
        if self.loss.classifies:
            rule = rule_of(tested_expectation(self)) or CLASS_NODES
            of = lambda own: accuracy(model, own.a, model.law(own), rule)
            right, error = of(stats.of(STUDENT))
            shown |= {"accuracy": right, **({} if is_closed(model) else {"accuracy_error": error})}
            shown |= {f"accuracy_{name}": of(stats.of(name)).value for name in copies}
        if has_tasks(model):
            own = stats.of(STUDENT)
            shown["task_risk"] = risk_by_class(tested_expectation(self), model, own.a, model.law(own))
        return shown

    def _risk(self, stats: Overlaps) -> Float[Array, ""]:
        own, model = stats.of(STUDENT), self.model.tested
        return tested_expectation(self).risk(model, own.a, model.law(own))

    @property
    @eqx.filter_jit
    def floor(self) -> Float[Array, ""]:
        """The mean over inputs and label noise of loss(label without noise, label): weight noise for a squared loss.

        For the cross-entropy of class labels it is their mean entropy, the loss of a network that is sure of every class.
        """
        return jnp.asarray(tested_expectation(self).floor(at_start(self.model.tested)))

    def moments(self, stats: Overlaps, tolerance: float | None = None) -> Estimate:
        """The moments behind drift and risk with their error estimates, which are zero for closed forms.

        Where an error is above `tolerance`, relative to the largest moment, an `AccuracyWarning` says so.

        >>> import sgdlimits as sl
        >>> problem = sl.presets.committee(2, 1, "tanh")
        >>> value, error = problem.moments(sl.FixedInit(0.5).one(problem), tolerance=1e-3)
        >>> bool(0 < error.gradient_gradient.max() < 1e-3 * value.gradient_field.max())
        True
        """
        self.coordinates.fits(stats)
        return accuracy_of.moments(at_start(self), stats, tolerance)


def tested_expectation(problem: ProjectionProblem) -> Expectation:
    """Return how the risk and other results of tests are computed: for the network without dropout."""
    if problem.network.mask_rate is None:
        return problem.expectation
    return for_tests(problem.asked, at_start(problem.model.tested))


def changes(
    problem: ProjectionProblem, stats: Overlaps, sums: Moments, total: Float[Array, "*batch"] | float = 1.0
) -> tuple[Overlaps, Overlaps]:
    """(population, corrector): what weighted sums of one-sample products do to the statistics, for a linear algorithm."""
    return linear_changes(problem.algorithm, problem.t, problem.data.squared_length, stats, sums, total)


def step_mean(problem: ProjectionProblem) -> StepMean:
    """Averages over steps that are not linear in the gradient."""
    return StepMean(problem.algorithm, problem.model, rule_of(problem.asked) or Sobol())


class ProjectionNumerics(Numerics):
    """The numerics of expectations: in closed form, or sums over nodes, of which a few runs are enough at a time."""

    @cached_property
    def size(self) -> int:
        n = self.problem.network.width * len(self.problem.algorithm.names)
        return n * (n + self.problem.target.teachers)

    @cached_property
    def samples_per_step(self) -> int:
        return self.problem.algorithm.batch

    @cached_property
    def tolerance(self) -> float:
        problem = self.problem
        return (
            problem.expectation.tolerance(at_start(problem.model))
            if problem.algorithm.limit.linear
            else step_mean(problem).rule.tolerance
        )

    @cached_property
    def runs_at_once(self) -> int | None:
        problem = self.problem
        if problem.algorithm.linear:
            return problem.expectation.runs_at_once(at_start(problem.model))
        return max(1, MAX_NODES_AT_ONCE // step_mean(problem).nodes)

    @cached_property
    def closed_covariance(self) -> bool:
        """Whether the covariance of the increments is a formula, not a sum over many points."""
        return self.problem.algorithm.limit.linear and self.problem.expectation.closed_covariance

    def without_smoothing(self) -> ProjectionProblem:
        own = self.problem.expectation
        return self.problem if own.without_smoothing() is own else self.problem.with_expectation(own.without_smoothing())

    def refined(self, stats: Overlaps, tolerance: float | None = None) -> ProjectionProblem:
        better = accuracy_of.refined(at_start(self.problem), stats, tolerance)
        return self.problem if better.asked is self.problem.asked else self.problem.with_expectation(better.asked)
