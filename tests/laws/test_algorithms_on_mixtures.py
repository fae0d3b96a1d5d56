"""Drift, covariance, ODE and SDE of every algorithm on two classes of unequal weight and small variance, against the chain.

On standard inputs a variance or a class weight that is left out does not show, and what is linear in the gradient has formulas
of its own: here each algorithm has its memory, its own noise and both classes.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.algorithm.coordinates import AdamLimit, SignSGDLimit
from sgdlimits.kernel.base import StepTime
from sgdlimits.kernel.random import Stream
from sgdlimits.level.chain import FrameChain

DATA = sl.mixture([[1.0], [-1.5]], weights=[0.8, 0.2], variance=0.3)
D, RUNS = 10**6, 20_000
T = 0.6
"""When steps are made: schedules and means of all weights depend on it."""
FULL = {"lr_second": 0.7, "ridge": 0.2}

ALGORITHMS = {
    "SGD": sl.OnePassSGD(1.5, batch=2, **FULL),
    "SGD, sphere": sl.OnePassSGD(1.5, sphere=True),
    "heavy ball": sl.HeavyBall(1.5, friction=3.0, **FULL),
    "Nesterov": sl.Nesterov(1.5, friction=3.0, **FULL),
    "mean of all": sl.Averaged(sl.OnePassSGD(1.5, **FULL)),
    "averaged clipped momentum": sl.Averaged(sl.Clipped(sl.HeavyBall(1.5, friction=3.0, **FULL), 0.15), rate=2.0),
    "clipped, each": sl.Clipped(sl.OnePassSGD(1.5, batch=2), 0.15, each=True),
    "private": sl.Private(sl.OnePassSGD(1.5), 0.15, 0.5),
    "normalised": sl.Normalised(0.7, **FULL),
    "AdaGrad": sl.AdaGradNorm(1.0, 0.5, **FULL),
    "SAM": sl.SAM(sl.OnePassSGD(1.5, ridge=0.2), 0.5),
    "extragradient": sl.Extragradient(1.5, **FULL),
    "repeated": sl.Repeated(sl.OnePassSGD(1.5, **FULL), 2),
    "Muon": sl.Muon(0.7, batch=2),
    "decayed": sl.Decayed(sl.Normalised(0.7), 0.8),
    "scheduled": sl.Scheduled(sl.Clipped(sl.OnePassSGD(1.5, **FULL), 0.15), 0.7, span=2.0, warmup=1.0),
    "sign": SignSGDLimit(0.7, batch=2, ridge=0.2),
    "Adam": AdamLimit(0.7, 1.3, 0.2),
}


def problem(algorithm, nodes):
    target, network = sl.Target(lambda fields: jnp.tanh(2 * fields[0]), 1, noise=0.09), sl.TwoLayer(2, "tanh")
    return sl.ProjectionProblem(target, network, sl.SquaredLoss(), algorithm, data=DATA, expectation=nodes)


def state(algorithm):
    """Overlaps of random vectors, those of all that is remembered too, and scalars and numbers away from where they begin."""
    rng = np.random.default_rng(1)
    W = 0.5 * rng.normal(size=(2 * len(algorithm.names), 8))
    number = lambda begins: 0.3 + (np.arange(2.0) if isinstance(begins, tuple) else 0.0)
    kept = {name: np.array([0.3, -0.2]) if algorithm.trains_second else () for name in algorithm.memory}
    kept |= {name: number(begins) for name, begins in algorithm.numbers.items()}
    if algorithm.sphere:
        W /= np.linalg.norm(W, axis=1, keepdims=True)
    return sl.Overlaps(np.array([1.0, 0.6]), W[:, :1], W @ W.T, kept, algorithm.names)


def increments(chain, stats):
    """d/b times what one step of the chain does to the statistics, for many runs."""
    starts = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (RUNS, *np.shape(leaf))), stats)
    return _increments(chain, jax.tree.map(jnp.asarray, chain.start(starts)), Stream.from_seed(4, np.arange(RUNS)))


@eqx.filter_jit
def _increments(chain, before, stream):
    samples = jax.tree.map(lambda leaf: leaf[0], chain.draw(stream))
    b = chain.problem.algorithm.batch
    after = chain.statistics(chain.step(before, samples, StepTime(jnp.asarray(T), jnp.asarray(b / D))))
    vector = jax.vmap(chain.problem.vector)
    return (vector(after) - vector(chain.statistics(before))) * D / b


@pytest.mark.parametrize("name", ALGORITHMS)
def test_drift_and_covariance_are_those_of_one_step_of_the_chain(name):
    """At d = 10^6: the mean of 20,000 steps within 5 standard errors, their covariance within 6 % of its largest entry."""
    algorithm = ALGORITHMS[name]
    this, stats = problem(algorithm, sl.Sobol(11)), state(algorithm)
    found = np.asarray(increments(FrameChain(this, D), stats))
    drift, covariance = eqx.filter_jit(lambda: (this.vector(this.drift(stats, T)), this.covariance(stats, T)))()
    error = 5 * found.std(0) / np.sqrt(RUNS) + 2e-3 * np.abs(found.mean(0)).max()  # and the nodes' own error
    assert (np.abs(found.mean(0) - drift) < error).all(), (found.mean(0), np.asarray(drift), error)
    expected = algorithm.batch * np.cov(found.T)
    np.testing.assert_allclose(covariance, expected, atol=0.06 * np.abs(expected).max())
