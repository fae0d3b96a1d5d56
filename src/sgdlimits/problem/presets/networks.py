"""Presets of regression: two-layer networks that learn a teacher."""

from __future__ import annotations

from collections.abc import Callable

from sgdlimits.algorithm.base import Algorithm
from sgdlimits.algorithm.sgd import OnePassSGD
from sgdlimits.domain import NotNegativeInTime, Rate, Size, Teachers, Width, checked
from sgdlimits.expectation import Expectation
from sgdlimits.expectation.gaussian import Rule
from sgdlimits.model.activation import Activation
from sgdlimits.model.loss import SquaredLoss
from sgdlimits.model.network import TwoLayer
from sgdlimits.model.target import CommitteeReadout, Target
from sgdlimits.problem.directions import InitialWeights
from sgdlimits.problem.projection import ProjectionProblem


@checked
def phase_retrieval(
    width: Width = 1,
    lr: Rate = 0.05,
    noise: NotNegativeInTime = 0.0,
    sphere: bool = True,
    train_second: bool = False,
    algorithm: Algorithm | None = None,
    rho: float = 1.0,
) -> ProjectionProblem:
    r"""Phase retrieval by squared units, :math:`y = (w_*\cdot x)^2 + \sqrt\Delta z`, loss :math:`\frac12(y-f)^2` [1]_.

    Arnaboldi, Krzakala, Loureiro and Stephan have inputs of variance 1/d and weights of norm :math:`\sqrt d`: their
    :math:`w/\sqrt d` is our u, their :math:`\sqrt d x` our x, their m and Q our M and Q. Their time is :math:`\nu\gamma/(pd)`,
    so that `rate` is :math:`\gamma/p`. `RandomInit` draws Gaussian weights (18), on the sphere scaled to norm 1.

    Parameters
    ----------
    width : p, the number of units
    lr : :math:`\gamma`, the learning rate
    noise : :math:`\Delta`, the variance of the label noise
    sphere : whether the weights stay on the sphere
    train_second : whether the second layer is trained, at the same learning rate; it stays at 1 otherwise
    algorithm : optimiser, which replaces `OnePassSGD` with the arguments given here
    rho : :math:`\rho = |w_*|^2` in our norm; `theory.mediocrity` and the paper from its section 2 on have 1

    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval(lr=0.1, noise=0.2)
    >>> m, gamma, Delta = 0.3, 0.1, 0.2
    >>> paper = m * (4 * (1 - 6 * gamma) * (1 - m**2) - 2 * gamma * Delta)         # equation (7)
    >>> ours = problem.drift(sl.Overlaps([1.0], [[m]], [[1.0]])).M[0, 0] / problem.rate
    >>> bool(abs(ours - paper) < 1e-14)
    True
    """
    target = Target(CommitteeReadout("square"), 1, noise=noise, gram=[[rho]])
    return _two_layer_problem("phase_retrieval", target, width, "square", lr, train_second, sphere, algorithm)


@checked
def quadratic_network(
    width: Width = 2, teachers: Teachers = 1, lr: Rate = 0.1, noise: NotNegativeInTime = 0.0, algorithm: Algorithm | None = None
) -> ProjectionProblem:
    r"""Quadratic network that learns another, :math:`y = \frac1{p^*}\sum_l (w^*_l\cdot x)^2`, loss :math:`(y-f)^2` [3]_.

    The :math:`w/\sqrt N` of Bocchi et al. is our u, their :math:`\rho` our M. Their time :math:`\alpha = M/N` is our t and
    their :math:`t = \eta\alpha` has `rate` :math:`\eta`. `OrthogonalInit(spread)` is their start (8); `RandomInit` draws
    independent directions of norm 1, as in their simulations.

    Parameters
    ----------
    width : p, the number of the student's units
    teachers : :math:`p^*`, the number of orthonormal teacher directions
    lr : :math:`\eta`, the learning rate
    noise : variance of the label noise (zero in the paper)
    algorithm : optimiser, which replaces `OnePassSGD` with the arguments given here

    >>> import sgdlimits as sl
    >>> float(sl.presets.quadratic_network(width=3, teachers=2, lr=0.2).rate)
    0.2
    """
    return ProjectionProblem(
        target=Target(CommitteeReadout("square"), teachers, noise=noise),
        network=TwoLayer(width, "square"),
        loss=SquaredLoss(weight=1.0),
        algorithm=OnePassSGD(lr),
        initial=InitialWeights(unit=True),
        paper_time=1.0,
        name="quadratic_network",
    ).with_algorithm(algorithm)


@checked
def committee(
    width: Width = 2,
    teachers: Teachers = 2,
    activation: str | Callable | Activation = "erf",
    lr: Rate = 0.1,
    noise: NotNegativeInTime = 0.0,
    train_second: bool | float = False,
    sphere: bool = False,
    teacher_activation: str | Callable | Activation | None = None,
    batch: Size = 1,
    expectation: Rule | Expectation | None = None,
    algorithm: Algorithm | None = None,
) -> ProjectionProblem:
    r"""Two-layer network that learns another, :math:`y = \frac1k\sum_r s(w^*_r\cdot x)`, loss :math:`\frac12(y-f)^2` [5]_.

    The network is :math:`f = \frac1p\sum_j a_j s(u_j\cdot x)`. Loureiro's slides have the loss without 1/2: their
    :math:`\gamma` is half of ours. Their time :math:`\nu\gamma/(pd)` has `rate` :math:`\gamma/p`. Saad and Solla [6]_ have
    sums, not means: for width = teachers = K their :math:`\eta` is our lr/K² and their error K² times our excess risk
    (docs/committees.md).

    Parameters
    ----------
    width : p, the number of the student's units
    teachers : k, the number of orthonormal teacher directions
    activation : erf (of x over the root of 2), erf_plain, relu, abs, tanh, sigmoid, linear, square, he1, he2, ..., or in Python
        any JAX function
    lr : :math:`\gamma`, the learning rate
    noise : :math:`\Delta`, the variance of the label noise
    train_second : whether the second layer is trained, at the same learning rate, or in Python its ratio to lr
    sphere : whether the weights stay on the sphere
    teacher_activation : activation of the teacher; that of the student unless given
    batch : samples per step, over which the gradient is averaged
    expectation : how expectations are computed, such as `Sobol(12)`, if the automatic choice is not accurate enough
    algorithm : optimiser, which replaces `OnePassSGD` with the arguments given here

    >>> import sgdlimits as sl
    >>> problem = sl.presets.committee(width=8, teachers=4, lr=0.1, noise=1e-3)
    >>> float(problem.risk(sl.FixedInit(0.0).one(problem))).__round__(4)
    0.063
    """
    teacher = activation if teacher_activation is None else teacher_activation
    target = Target(CommitteeReadout(teacher), teachers, noise=noise)
    return _two_layer_problem("committee", target, width, activation, lr, train_second, sphere, algorithm, batch, expectation)


@checked
def single_index(
    activation: str | Callable | Activation = "he2",
    target: str | Callable | Activation | None = None,
    lr: Rate = 0.05,
    noise: NotNegativeInTime = 0.0,
    width: Width = 1,
    sphere: bool = True,
    train_second: bool | float = False,
    batch: Size = 1,
    expectation: Rule | Expectation | None = None,
    algorithm: Algorithm | None = None,
) -> ProjectionProblem:
    r"""Network that learns a single-index model, :math:`y = g(w_*\cdot x) + \sqrt\Delta z`, loss :math:`\frac12(y-f)^2` [5]_.

    The number of samples that learning takes depends on `information_exponent(target)`: it is of order d for 1, d log d for 2
    and :math:`d^{n-1}` for n = 3 and more. The clock is that of Loureiro's slides, as for `committee`.

    Parameters
    ----------
    activation : s, of the student: erf, relu, tanh, square, he1, he2, ..., or in Python any JAX function
    target : g, the link function of the labels; the activation unless given
    lr : :math:`\gamma`, the learning rate; `recommended_lr` says how it must scale with d
    noise : :math:`\Delta`, the variance of the label noise
    width : p, the number of the student's units
    sphere : whether the weights stay on the sphere
    train_second : whether the second layer is trained, at the same learning rate, or in Python its ratio to lr
    batch : samples per step, over which the gradient is averaged
    expectation : how expectations are computed, such as `Sobol(12)`, if the automatic choice is not accurate enough
    algorithm : optimiser, which replaces `OnePassSGD` with the arguments given here

    >>> import sgdlimits as sl
    >>> problem = sl.presets.single_index("he3", lr=0.01)
    >>> m, gamma = 0.1, 0.01
    >>> population = 18 * m**2 * (1 - m**2)                       # E[G l*] = -3! 3 m^2, off the sphere's radial part
    >>> ours = problem.drift_parts(sl.Overlaps([1.0], [[m]], [[1.0]]))[0].M[0, 0] / problem.rate
    >>> bool(abs(ours - population) < 1e-12)
    True
    """
    labels = Target(CommitteeReadout(activation if target is None else target), 1, noise=noise)
    return _two_layer_problem(
        "single_index", labels, width, activation, lr, train_second, sphere, algorithm, batch, expectation
    )


def _two_layer_problem(
    name, target, width, activation, lr, train_second, sphere, algorithm, batch=1, expectation=None
) -> ProjectionProblem:
    """Return the problem of a two-layer network of p units with squared loss; its paper's time is t times lr/p.

    `lr` is the learning rate of the first layer.
    """
    return ProjectionProblem(
        target=target,
        network=TwoLayer(width, activation),
        loss=SquaredLoss(),
        algorithm=OnePassSGD(lr, lr_second=lr * train_second if train_second else None, sphere=sphere, batch=batch),
        expectation=expectation,
        initial=InitialWeights(unit=sphere),
        paper_time=1 / width,
        name=name,
    ).with_algorithm(algorithm)
