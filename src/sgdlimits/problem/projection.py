"""Projection problems: target, network and loss depend on the input through its fields along a few directions."""

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
from sgdlimits.algorithm.limit import StepAverages, check_limit, depends_on_time, extend_moments, linear_step_increments
from sgdlimits.algorithm.needs import is_linear
from sgdlimits.domain import Positive, checked
from sgdlimits.errors import BadInput
from sgdlimits.expectation import Expectation, as_expectation, choose_expectation
from sgdlimits.expectation.base import freeze_zero_units, linearise_increment
from sgdlimits.expectation.choose import choose_without_dropout
from sgdlimits.expectation.class_sums import has_tasks, quadrature_rule_of, risk_by_class
from sgdlimits.expectation.gaussian import Estimate, Rule, Sobol
from sgdlimits.expectation.nodes import MAX_NODES_AT_ONCE
from sgdlimits.expectation.right_class import has_closed_accuracy
from sgdlimits.inputs import Blocks, Inputs, Reused, TrainingSet, gaussian
from sgdlimits.inputs.base import refuse_noise
from sgdlimits.model.loss import Loss, as_loss
from sgdlimits.model.network import AnyNetwork
from sgdlimits.model.sample import Model
from sgdlimits.model.target import Target
from sgdlimits.part import at_start
from sgdlimits.problem import fits
from sgdlimits.problem.accuracy import estimate_moments, refine_expectation
from sgdlimits.problem.base import CHECK_TIME, Problem
from sgdlimits.problem.blocks import accuracy_over_classes, block_covariance, block_drift_parts, models_by_class
from sgdlimits.problem.directions import Directions, InitialWeights
from sgdlimits.problem.numerics import Numerics
from sgdlimits.problem.overlap_coordinates import OverlapCoordinates, check_names
from sgdlimits.statistics.overlaps import STUDENT, Overlaps, symmetrise
from sgdlimits.statistics.products import Moments
from sgdlimits.statistics.trees import add
from sgdlimits.text import format_count

ACCURACY_NODES = Sobol(10)  # leaves an error of 1e-3 in the accuracy of XOR
"""Quadrature nodes for a classifier's accuracy, unless the problem's expectations are sums over given nodes."""


class ModelProblem(Problem):
    """A problem made of the model of one sample (data, target, network, loss) and an algorithm that trains it."""

    model: Model
    algorithm: Algorithm
    training_set: TrainingSet | None = eqx.field(static=True)

    @property
    def data(self) -> Inputs:
        """Law of the inputs of fresh samples, such as a Gaussian mixture."""
        return self.model.data

    @property
    def training_data(self) -> Inputs | Reused:
        """Inputs on which SGD trains: fresh samples of `data`, or a dataset of such samples that it reuses."""
        return self.data if self.training_set is None else Reused(*self.training_set, self.data)

    @property
    def target(self) -> Target:
        """Law of the labels, given the fields of an input along the fixed directions."""
        return self.model.target

    @property
    def network(self) -> AnyNetwork:
        """Network that is trained, such as a two-layer network."""
        return self.model.network

    @property
    def loss(self) -> Loss:
        """Loss of one prediction and its label."""
        return self.model.loss

    @property
    def frame(self) -> Float[Array, "k k"]:
        """Coordinates of the fixed directions, in rows, in an orthonormal basis of their span: a square matrix."""
        return self.model.frame

    @property
    def frames(self) -> Float[Array, "*blocks k k"]:
        """Coordinates of the fixed directions in an orthonormal basis of their span: one matrix, or one for each block."""
        return self.model.frames

    @property
    def sphere(self) -> bool:
        return self.algorithm.sphere

    @property
    def trains_second(self) -> bool:
        return self.algorithm.trains_second

    def __repr__(self) -> str:
        data, target, network = self.data, self.target, self.network
        inputs = "standard normal inputs" if data.centred else f"inputs of {format_count(data.classes, 'class', 'classes')}"
        if isinstance(data, Blocks):
            inputs = f"inputs of {format_count(data.classes, 'class', 'classes')} in {format_count(len(data.shares), 'block')}"
        inputs += ", with noise in training" if data.has_noise else ""
        unit = "field" if network.activation is None else network.activation.as_argument().strip("'") + " unit"
        learner = format_count(network.width, unit)
        verb = "learns" if network.width == 1 else "learn"
        learnt = f"{learner} {verb} {format_count(target.teachers, 'direction')} from {inputs}"
        return f"{super().__repr__()}\n  {learnt}; {self.loss.as_argument()}, {type(self.algorithm).__name__}"


@checked
class ProjectionProblem(ModelProblem):
    r"""A network that learns a target from Gaussian data by one-pass SGD.

    The statistics are the overlaps M of the trained directions :math:`u_j` with the fixed directions :math:`e_r`, the overlaps
    Q of the trained directions, and the second layer a. With fields :math:`\lambda_j = u_j\cdot x`, :math:`\lambda^*_r =
    e_r\cdot x` of an input x of variance :math:`\sigma^2`, loss l and :math:`G = \partial l/\partial\lambda` they obey, as
    :math:`d\to\infty`,

    .. math::
        \dot M &= -\text{lr}\,(E[G\lambda^{*\top}] + \text{ridge}\, M), \\
        \dot Q &= -\text{lr}\,(E[G\lambda^\top + \lambda G^\top] + 2\,\text{ridge}\, Q) + \text{lr}^2\sigma^2 E[GG^\top], \\
        \dot a &= -\text{lr}_2\,(E[\partial_a l] + \text{ridge}\, a),

    for one-pass SGD. The last term of :math:`\dot Q`, quadratic in the learning rate, is the corrector; all other terms are the
    population drift. On the sphere the change of each
    norm is projected out: :math:`\dot M_{jr} \mathrel{-}= M_{jr}\dot Q_{jj}/2` and
    :math:`\dot Q_{jl} \mathrel{-}= Q_{jl}(\dot Q_{jj} + \dot Q_{ll})/2`.

    Parameters
    ----------
    target : law of the labels, a `Target`
    network : `TwoLayer`, or any function of fields and scalars as a `Network`
    loss : `SquaredLoss`, `CrossEntropy`, `SoftmaxCrossEntropy`, or a JAX function loss(prediction, label)
    algorithm : optimiser, `OnePassSGD` or another `Algorithm`
    data : law of the inputs, such as a `mixture`, or a dataset `Reused(n)`; None takes standard normal inputs
    expectation : how expectations are computed: a quadrature rule such as `GaussHermite(32)` or `Sobol(12)`, or an
        `Expectation`; None chooses automatically
    initial : law of the initial weights, from which `RandomInit` draws
    paper_time : time of the problem's paper per unit of lr t; None if there is no paper
    name : name of the problem in tables and files

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

    recorded: ClassVar[dict[str, str]] = {"expectation": "asked", "data": "training_data"}

    def __init__(
        self,
        target: Target,
        network: AnyNetwork,
        loss: Callable,
        algorithm: Algorithm,
        *,
        data: Inputs | Reused | None = None,
        expectation: Rule | Expectation | None = None,
        initial: InitialWeights | None = None,
        paper_time: Positive | None = None,
        name: str = "projection",
    ) -> None:
        self.training_set = data.training_set if isinstance(data, Reused) else None
        data = data.base if isinstance(data, Reused) else gaussian() if data is None else data
        fits.check_parts(data, target, network, loss, algorithm)
        self.model = Model(data, target, network, as_loss(loss, network.shape))
        self.algorithm, self.asked = algorithm, as_expectation(expectation, self.model)
        self.initial = InitialWeights(unit=algorithm.sphere) if initial is None else initial
        self.paper_time, self.name, self.t = paper_time, name, 0.0

    @property
    def expectation(self) -> Expectation:
        """Method to compute expectations over a sample: the user's choice, or that of the package for the model."""
        return choose_expectation(at_start(self.model)) if self.asked is None else self.asked

    @property
    def coordinates(self) -> OverlapCoordinates:
        return OverlapCoordinates(self)

    @property
    def numerics(self) -> ProjectionNumerics:
        return ProjectionNumerics(self)

    @property
    def directions(self) -> Directions:
        network, algorithm = self.network, self.algorithm
        if network.has_array_scalars:
            sizes = None if self.data.blocks is None else self.data.block_sizes
            return Directions(network.width, self.model.gram, self.initial, sizes=sizes)
        scalars = network.initial(self.initial.second)
        return Directions(network.width, self.target.gram, self.initial, scalars, tuple(algorithm.select_trained(scalars)))

    def at(self, t):
        now = super().at(CHECK_TIME("t", t))
        # the time itself is needed only by algorithms that read it
        return (
            eqx.tree_at(lambda problem: problem.t, now, t)
            if depends_on_time(at_start(self.algorithm), at_start(self.model))
            else now
        )

    @property
    def limit(self) -> ProjectionProblem:
        """The problem in the limit of large d, where the algorithm and the statistics may differ from those at finite d."""
        check_fresh(self)
        other = self.algorithm.limit
        check_limit(at_start(other), at_start(self.model))
        if isinstance(self.data, Blocks) and not is_linear(other, self.network.width):
            refuse_noise(self.data, f"the limit of {type(other).__name__}")
            raise BadInput(
                f"the limit of {type(other).__name__} is not available for inputs with variances by block or class. "
                f"Use Chain(d) or SGD(d)."
            )
        return self if other is self.algorithm else eqx.tree_at(lambda problem: problem.algorithm, self, other)

    @property
    def rate(self):
        # paper time counts lr t, with the learning rate at the start where it is a schedule
        return 1.0 if self.paper_time is None else self.paper_time * at_start(self.algorithm).lr_sample

    def with_expectation(self, expectation: Rule | Expectation) -> ProjectionProblem:
        """Return the problem with expectations computed by another quadrature rule or `Expectation`."""
        asked = as_expectation(expectation, self.model)
        return eqx.tree_at(lambda problem: problem.asked, self, asked, is_leaf=lambda node: node is None)

    @checked
    def with_algorithm(self, algorithm: Algorithm | None) -> ProjectionProblem:
        """Return the problem with another algorithm; None returns the problem unchanged.

        If the algorithm normalises directions, random starts have norm 1.
        """
        if algorithm is None:
            return self
        fits.check_parts(self.data, self.target, self.network, self.loss, algorithm)
        initial = dataclasses.replace(self.initial, unit=self.initial.unit or algorithm.sphere)
        return eqx.tree_at(lambda problem: (problem.algorithm, problem.initial), self, (algorithm, initial))

    def _drift_parts(self, stats: Overlaps) -> tuple[Overlaps, Overlaps]:
        problem, stats = self.limit, symmetrise(stats)
        check_names(problem.algorithm, stats)
        if not is_linear(problem.algorithm, problem.network.width):
            return step_averages(problem).drift_parts(problem.t, stats)
        if isinstance(self.data, Blocks):
            return block_drift_parts(problem, self.expectation, stats)
        students = stats.of(STUDENT)
        moments = self.expectation.moments(self.model, students.a, self.model.law(students))
        moments = freeze_zero_units(self.model, jnp.diagonal(students.Q), moments)  # relu units of norm zero stay at rest
        return linear_increments(problem, stats, extend_moments(self.model, students, stats, moments)[0])

    def _covariance(self, stats: Overlaps) -> Float[Array, "n n"]:
        problem = self.limit
        check_names(problem.algorithm, stats)
        if not is_linear(problem.algorithm, problem.network.width):
            return step_averages(problem).covariance(problem.t, stats, self.vector)
        if isinstance(self.data, Blocks):
            return block_covariance(problem, self.expectation, stats, self.vector)
        students, column = stats.of(STUDENT), jax.tree.map(lambda leaf: leaf[..., None], stats)
        increment = lambda products: problem.vector(add(*linear_increments(problem, column, products)))
        all_fields = lambda products: extend_moments(self.model, students, stats, products)[0]
        law = self.model.law(students)
        covariance = self.expectation.covariance(self.model, students.a, law, lambda products: increment(all_fields(products)))
        if len(stats.names) == 1:
            return covariance
        # directions beside the students, such as averages: the part of an input's field that is independent of the gradient
        # adds to the covariance
        moments = self.expectation.moments(self.model, students.a, law)
        rest = self.data.squared_length * extend_moments(self.model, students, stats, moments)[1]
        slope = linearise_increment(increment, students.a, law.shape, stats.M.shape[0]).gradient_field
        return covariance + jnp.einsum("xjm,jl,mn,yln->xy", slope, moments.gradient_gradient, rest, slope)

    def observables(self, stats):
        """Return the accuracy of a classifier, and the risk and accuracy of averaged weights if the algorithm stores averages.

        An accuracy computed as a sum over nodes comes with `accuracy_error`, its standard error. If classes have
        their own readouts or heads, `task_risk` is the risk on each class.
        """
        model = self.model.test_model
        copies = [name for name in stats.names if self.algorithm.memory.get(name) == "copy"]
        values = {f"risk_{name}": self._risk(stats.of(name)) for name in copies}
        if self.loss.classifies:
            rule = quadrature_rule_of(risk_expectation(self)) or ACCURACY_NODES
            of = lambda weights: accuracy_over_classes(model, weights.a, model.law(weights), rule)
            right, error = of(stats.of(STUDENT))
            closed = all(has_closed_accuracy(part) for part in models_by_class(model))
            values |= {"accuracy": right, **({} if closed else {"accuracy_error": error})}
            values |= {f"accuracy_{name}": of(stats.of(name)).value for name in copies}
        if has_tasks(model):
            students = stats.of(STUDENT)
            values["task_risk"] = risk_by_class(risk_expectation(self), model, students.a, model.law(students))
        return values

    def _risk(self, stats: Overlaps) -> Float[Array, ""]:
        students, model = stats.of(STUDENT), self.model.test_model
        return risk_expectation(self).risk(model, students.a, model.law(students))

    @property
    @eqx.filter_jit
    def floor(self) -> Float[Array, ""]:
        """Noise floor of the risk: the mean loss of predicting each label without its noise.

        For a squared loss the floor is the weight of the loss times the variance of the label noise. For the cross-entropy of
        class labels it is the mean entropy of the labels, the loss of a perfectly confident network.
        """
        # of the label noise at the start, if that is a schedule
        return jnp.asarray(risk_expectation(self).floor(at_start(self.model.test_model)))

    def moments(self, stats: Overlaps, tolerance: float | None = None) -> Estimate:
        """Return the expectations that give the drift and the risk, with error estimates (zero for closed forms).

        An `AccuracyWarning` reports an error above `tolerance`, relative to the largest moment.

        >>> import sgdlimits as sl
        >>> problem = sl.presets.committee(2, 1, "tanh")
        >>> value, error = problem.moments(sl.FixedInit(0.5).one(problem), tolerance=1e-3)
        >>> bool(0 < error.gradient_gradient.max() < 1e-3 * value.gradient_field.max())
        True
        """
        self.coordinates.fits(stats)
        return estimate_moments(at_start(self), stats, tolerance)


def check_fresh(problem: ProjectionProblem) -> None:
    """Raise `BadInput` if SGD reuses the samples of a dataset, on which the weights then depend."""
    if problem.training_set is not None:
        raise BadInput(
            f"the limit of large d needs fresh samples, and this problem reuses "
            f"{format_count(problem.training_set.n, 'sample')}. Use Chain(d) or SGD(d), or data without Reused."
        )


def risk_expectation(problem: ProjectionProblem) -> Expectation:
    """Return the method that computes risk and accuracy, which are those of the network without dropout."""
    if problem.network.mask_rate is None:
        return problem.expectation
    return choose_without_dropout(problem.asked, at_start(problem.model.test_model))


def linear_increments(
    problem: ProjectionProblem, stats: Overlaps, sums: Moments, total: Float[Array, "*batch"] | float = 1.0
) -> tuple[Overlaps, Overlaps]:
    """Return the increments of the statistics by an algorithm that is linear in the gradient, in two parts.

    The first part is gradient flow; the second, the corrector, is quadratic in the learning rate.

    Parameters
    ----------
    sums : weighted sums over samples of products of gradients and fields; expectations give the drift
    total : sum of the weights
    """
    return linear_step_increments(problem.algorithm, problem.t, problem.data.squared_length, stats, sums, total)


def step_averages(problem: ProjectionProblem) -> StepAverages:
    """Return the averages over whole steps from which the drift of an algorithm nonlinear in the gradient is computed."""
    return StepAverages(problem.algorithm, problem.model, quadrature_rule_of(problem.asked) or Sobol())


class ProjectionNumerics(Numerics):
    """Numerical properties of a projection problem, whose expectations are closed forms or sums over many nodes."""

    @cached_property
    def size(self) -> int:
        n = self.problem.network.width * len(self.problem.algorithm.names)
        return n * (n + self.problem.target.teachers) * (self.problem.data.blocks or 1)

    @cached_property
    def samples_per_step(self) -> int:
        return self.problem.algorithm.batch

    @cached_property
    def tolerance(self) -> float:
        problem = self.problem
        return (
            problem.expectation.tolerance(at_start(problem.model))
            if is_linear(problem.algorithm.limit, problem.network.width)
            else step_averages(problem).rule.tolerance
        )

    @cached_property
    def runs_at_once(self) -> int | None:
        problem = self.problem
        if is_linear(problem.algorithm, problem.network.width):
            return problem.expectation.runs_at_once(at_start(problem.model))
        return max(1, MAX_NODES_AT_ONCE // step_averages(problem).nodes)

    @cached_property
    def closed_covariance(self) -> bool:
        """Whether the noise covariance of the increments has a closed form, so that no sum over nodes is needed."""
        return (
            is_linear(self.problem.algorithm.limit, self.problem.network.width) and self.problem.expectation.closed_covariance
        )

    def without_smoothing(self) -> ProjectionProblem:
        expectation = self.problem.expectation
        exact = expectation.without_smoothing()
        return self.problem if exact is expectation else self.problem.with_expectation(exact)

    def refined(self, stats: Overlaps, tolerance: float | None = None) -> ProjectionProblem:
        better = refine_expectation(at_start(self.problem), stats, tolerance)
        return self.problem if better.asked is self.problem.asked else self.problem.with_expectation(better.asked)
