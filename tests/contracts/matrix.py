"""The problems and the levels that every contract is tried on. Add yours to PROBLEMS or LEVELS."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import sgdlimits as sl
from sgdlimits.problem.mean_field import MeanFieldProblem
from sgdlimits.statistics.particles import particles_of

D = 1024
"""From this dimension on the chain's blocks have their full size, so that larger dimensions share what is compiled."""
SPACE = 256
"""The dimension of SGD, which takes time with weights in it and shares nothing."""
RUNS, FEWER = 16, 4
"""Sizes of batches: all simulations of a pair have one of them, and so compile two loops."""


# --- problems that a user might write ----------------------------------------------------------------------------------------


def huber(prediction, label):
    error = jnp.abs(prediction - label)
    return jnp.where(error < 1, error**2 / 2, error - 0.5)


def product(fixed):
    return fixed[0] * fixed[1]


def absolute_huber_product() -> sl.ProjectionProblem:
    """Absolute-value units, Huber loss, a readout of two directions: nothing of it is in the package. Clipped gradients."""
    return sl.ProjectionProblem(
        target=sl.Target(product, teachers=2, noise=0.1),
        network=sl.TwoLayer(2, jnp.abs),
        loss=huber,
        algorithm=sl.Clipped(sl.OnePassSGD(lr=0.3, lr_second=0.2, ridge=0.05), norm=0.5),
        expectation=sl.Sobol(log2_points=9, scrambles=8),
        name="absolute_huber_product",
    )


def unequal_teachers() -> sl.ProjectionProblem:
    """A quadratic readout of directions that are not orthonormal, on the sphere, second layer trained, batches of three."""
    return sl.ProjectionProblem(
        target=sl.Target(sl.QuadraticReadout([[1.0, 0.2], [0.2, -0.5]]), 2, noise=0.05, gram=[[1.0, 0.3], [0.3, 0.7]]),
        network=sl.TwoLayer(3, "square"),
        loss=sl.SquaredLoss(),
        algorithm=sl.OnePassSGD(lr=0.9, lr_second=0.3, sphere=True, batch=3),
        name="unequal_teachers",
    )


def own_mixture() -> sl.ProjectionProblem:
    """Three classes of different weights and two labels along directions that are not orthonormal, ridge on both layers.

    By few Sobol points, which compile faster: the accuracy of expectations has tests of its own.
    """
    means, labels, weights = [[1.0, 0.0], [-0.5, 1.0], [0.0, -1.0]], [1.0, 0.0, 1.0], [0.3, 0.5, 0.2]
    gram = [[1.0, 0.3], [0.3, 0.7]]
    return sl.presets.gaussian_mixture(
        means, labels, weights, snr=4.0, ridge=0.05, lr=1.5, width=2, gram=gram, expectation=sl.Sobol(7, 4)
    )


OUTPUTS = 3


def three_classes() -> sl.ProjectionProblem:
    """Softmax over three classes of different weights around a circle; one rate for the second layer, one for the bias."""
    angle = 2 * np.pi * np.arange(OUTPUTS) / OUTPUTS
    return sl.ProjectionProblem(
        target=sl.Target(sl.ClassLabels(range(OUTPUTS)), 2),
        network=sl.TwoLayer(2, "tanh", mean=False, outputs=OUTPUTS, bias=True),
        loss=sl.SoftmaxCrossEntropy(),
        algorithm=sl.OnePassSGD(lr=1.0, lr_second={"a": 0.5, "bias": 0.2}, ridge=0.05),
        data=sl.mixture(np.stack([np.cos(angle), np.sin(angle)], axis=1), [0.5, 0.3, 0.2], variance=0.25),
        initial=sl.InitialWeights(second=0.0, second_spread=1.0),
        expectation=sl.Sobol(7, 4),
        name="three_classes",
    )


# --- problems ----------------------------------------------------------------------------------------------------------------


def has_inputs_at_means() -> sl.ProjectionProblem:
    return sl.presets.binary_mixture(snr=math.inf, ridge=0.1)


def line_of_classes() -> sl.ProjectionProblem:
    """Smooth units, three classes on a line; a velocity as slow as the weights."""
    ball = sl.HeavyBall(1.0, friction=2.0, lr_second=1.0, ridge=0.1)
    means, labels, weights = [[-1.0], [0.0], [1.0]], [0, 1, 0], [0.3, 0.4, 0.3]
    return sl.presets.gaussian_mixture(
        means, labels, weights, snr=5.0, activation="erf", algorithm=ball, expectation=sl.Sobol(6, 4)
    )


def adaptive() -> sl.ProjectionProblem:
    """A learning rate that the gradients so far decide, and the average of the weights beside them."""
    return sl.presets.committee(
        2, 1, "erf", noise=0.1, algorithm=sl.Averaged(sl.AdaGradNorm(0.5), rate=2.0), expectation=sl.Sobol(6, 4)
    )


def tasks_in_turn() -> sl.ProjectionProblem:
    """One task after the other, with a head for each."""
    return sl.presets.two_tasks(2, "erf", 0.5, weights=sl.Steps([0.1], [[0.8, 0.2], [0.2, 0.8]]), lr=0.5, noise=0.1)


def dropped() -> sl.ProjectionProblem:
    """Dropout of units, second layer trained."""
    return sl.ProjectionProblem(
        target=sl.Target(sl.CommitteeReadout("erf"), 2, noise=0.1),
        network=sl.TwoLayer(2, "erf", dropout=0.3),
        loss=sl.SquaredLoss(),
        algorithm=sl.OnePassSGD(0.5, lr_second=0.5),
        name="dropped",
    )


PROBLEMS = {
    "absolute_huber_product": absolute_huber_product,
    "unequal_teachers": unequal_teachers,
    "own_mixture": own_mixture,
    "three_classes": three_classes,
    "spiked_tensor": lambda: sl.presets.spiked_tensor(order=3, snr=3.0, lr=0.1, ridge=0.01),
    "phase_retrieval": lambda: sl.presets.phase_retrieval(width=2, lr=0.1, noise=0.1),
    "quadratic_network": lambda: sl.presets.quadratic_network(width=3, teachers=2, lr=0.1, noise=0.1),
    "committee": lambda: sl.presets.committee(2, 2, "erf", lr=0.5, noise=0.1, train_second=0.5),
    "single_index": lambda: sl.presets.single_index("he3", lr=0.02, noise=0.1),
    "binary_mixture": lambda: sl.presets.binary_mixture(snr=10.0),
    "xor_mixture": lambda: sl.presets.xor_mixture(snr=10.0, width=2),
    "gaussian_mixture": line_of_classes,
    "on_means": has_inputs_at_means,
    "adaptive": adaptive,
    "two_tasks": tasks_in_turn,
    "drifting": lambda: sl.presets.drifting(speed=0.5, width=2, activation="erf", train_second=True),
    "dropped": dropped,
}
BY_POINTS = {
    "absolute_huber_product": sl.Sobol(9, 8),
    "own_mixture": sl.Sobol(7, 4),
    "binary_mixture": sl.Sobol(8, 4),
    "xor_mixture": sl.Sobol(8, 4),
}
"""At a level these take few Sobol points, which are faster: their own expectations are tried without a level."""
GENERAL = ("unequal_teachers", "spiked_tensor")
"""What contracts without a level are tried on without --all: sphere, second layer and batches; tensors."""


def saddle(problem):
    """No overlap, units of norm 1 orthogonal to each other."""
    return sl.FixedInit(0.0).one(problem)


def plateau(problem):
    one = saddle(problem)
    return sl.Overlaps(one.a, one.M, sl.theory.quadratic.plateau_norm(problem) * one.Q)


def noise_alone(problem):
    """The tensor that noise and ridge hold at a length, 12 r^2 - 12 lr r + 2 ridge = 0 for r = r2 at order three."""
    return sl.Spike(0.0, float(np.roots([12, -12 * problem.lr, 2 * problem.ridge]).max()))


def optimum(problem):
    x = sl.theory.effective.ring_radius(ridge=0.1, weight=0.5) * np.array([1.0, -1.0])
    return sl.Overlaps(x, x[:, None], np.outer(x, x))


POINTS = {
    "phase_retrieval": saddle,
    "single_index": saddle,
    "quadratic_network": plateau,
    "spiked_tensor": noise_alone,
    "on_means": optimum,
}
"""A fixed point of the drift, where one is known: for levels that describe SGD near it."""


# --- what contracts look at --------------------------------------------------------------------------------------------------


def overlap(stats):
    """The overlaps with the fixed directions, of statistics or a dataset."""
    return stats.M if hasattr(stats, "M") else stats.m


def square(stats):
    """The squared overlaps of one run together."""
    return (overlap(stats) ** 2).sum()


class Beyond(eqx.Module):
    """A predicate: the squared overlaps are above a number, which compiled code takes as an argument."""

    bound: Array = eqx.field(converter=jnp.asarray)

    def __call__(self, stats):
        return square(stats) > self.bound


def oblique(problem, overlap, **more):
    """A fixed start of units that are not orthogonal, as random ones: what moves, and so what is compiled, is the same."""
    one = sl.FixedInit(overlap, **more).one(problem)
    if not isinstance(one, sl.Overlaps):
        return one
    students = one.of("student")
    tilted = sl.Overlaps(students.a, students.M, students.Q + 0.1 * (1 - np.eye(len(students.Q))))
    batch = problem.coordinates.from_overlaps(jax.tree.map(lambda leaf: np.asarray(leaf)[None], tilted))
    return jax.tree.map(lambda leaf: leaf[0], batch)


# --- levels ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A level in the contracts: how it is made for a problem, and what is true of it on every problem.

    Parameters
    ----------
    make : the level at its dimension, from the name of a problem and the problem
    suits : the names of the problems that it is written for
    noisy : whether runs from one start differ
    steps : whether a run ends after whole steps of SGD
    leaps : whether it makes steps of its own where a predicate is to be asked
    end : when simulations end
    runs : how many there are in a batch
    d : the dimension of the level and of the start
    view, seen : the problem and its statistics as the level has them
    near : where its mean follows the drift, from the name of a problem and the problem
    expectation : fewer points yet for the problems in BY_POINTS, where every step is a sum over them
    """

    make: Callable
    suits: tuple[str, ...] = tuple(PROBLEMS)
    noisy: bool = True
    steps: bool = False
    leaps: bool = False
    end: float = 1.0
    runs: int = RUNS
    d: int = D
    view: Callable = lambda problem: problem
    seen: Callable = lambda stats: stats
    near: Callable = lambda name, problem: oblique(problem, 0.3)
    expectation: sl.Sobol | None = None


def beside(name, problem):
    """A place near the fixed point of a problem: a mean of overlaps is the overlap of some weights."""
    mix = lambda point, other: 0.95 * point + 0.05 * other
    return jax.tree.map(mix, POINTS[name](problem), sl.FixedInit(0.3).one(problem))


LEVELS = {
    "sgd": Kind(lambda name, problem: sl.SGD(SPACE), steps=True, end=0.25, d=SPACE),
    "chain": Kind(lambda name, problem: sl.Chain(D), steps=True),
    # Without the problems whose every drift is a sum over nodes of several samples or outputs: slow, and laws have them.
    "sde": Kind(
        lambda name, problem: sl.SDE(D, dt=1 / 32, samples=8),
        suits=tuple(name for name in PROBLEMS if name not in ("adaptive", "three_classes")),
        expectation=sl.Sobol(6, 4),
    ),
    # Ends early, and of few runs: smooth, and slow where the drift is a sum over Sobol points and each run is a system.
    "ode": Kind(lambda name, problem: sl.ODE(), noisy=False, end=0.125, runs=6, expectation=sl.Sobol(6, 4)),
    "mean-field": Kind(
        lambda name, problem: sl.MeanField(),
        suits=("unequal_teachers", "phase_retrieval", "quadratic_network", "committee", "single_index"),
        noisy=False,
        end=0.25,
        view=MeanFieldProblem,
        seen=particles_of,
    ),
    "local": Kind(lambda name, problem: sl.Local(POINTS[name](problem), D), suits=tuple(POINTS), leaps=True, near=beside),
}


# --- pairs -------------------------------------------------------------------------------------------------------------------

FEW = [
    ("absolute_huber_product", "sgd"), ("unequal_teachers", "chain"), ("spiked_tensor", "chain"), ("committee", "sde"),
    ("spiked_tensor", "sde"), ("quadratic_network", "ode"), ("committee", "mean-field"), ("phase_retrieval", "local"),
    ("three_classes", "chain"), ("two_tasks", "chain"), ("dropped", "sde"), ("drifting", "ode"),
]  # fmt: skip
"""Each level and each loop, and a problem of each kind."""


def some(cases, few):
    """The cases as parameters: those of `few` always, the others only with --all."""
    return [pytest.param(*case, marks=() if case in few else pytest.mark.full, id="-".join(case)) for case in cases]


ALL_PAIRS = some([(name, level) for level, kind in LEVELS.items() for name in kind.suits], FEW)
ALL_PROBLEMS = some([(name,) for name in PROBLEMS], [(name,) for name in GENERAL])
