"""The exact chain has the law of SGD in R^d."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.kernel.base import StepTime
from sgdlimits.level.chain import FrameChain
from sgdlimits.level.sgd import Batch, WeightProcess
from sgdlimits.model import Data
from sgdlimits.statistics.frame import StepCoordinates

GRAM = [[1.0, 0.4], [0.4, 0.8]]
MIXTURE = Data(weights=jnp.array([0.3, 0.7]), means=jnp.array([[1.0], [-0.6]]), sigma=jnp.asarray(0.8))


def problem(width, teachers=1, *, sphere=False, noise=0.0, ridge=0.0, second=None, lr=0.3, data=None):
    return sl.ProjectionProblem(
        data=data,
        target=sl.Target(sl.CommitteeReadout("square"), teachers, noise=noise, gram=GRAM if teachers == 2 else None),
        network=sl.TwoLayer(width, "square"),
        loss=sl.SquaredLoss(),
        algorithm=sl.OnePassSGD(lr, lr_second=second, ridge=ridge, sphere=sphere),
    )


# Off the sphere a large input can throw a run out at small d, and more so the larger lr: these rates lose none of 3000 runs.
CASES = {
    "one unit, sphere": (problem(1, sphere=True, noise=0.3, lr=0.1), 30),
    "two units, two teachers, all": (problem(2, 2, noise=0.2, ridge=0.3, second=0.05, lr=0.05), 25),
    "five units, two teachers, sphere, ridge": (problem(5, 2, sphere=True, ridge=0.2, noise=0.2, lr=0.8), 30),
    "two classes": (problem(2, noise=0.1, ridge=0.2, lr=0.05, data=MIXTURE), 15),
    "no room: p + k = d + 1": (problem(3, 2, sphere=True, lr=0.2), 4),
    "no room: p + k > d": (problem(5, 2, noise=0.2, ridge=0.1, lr=0.02), 4),
}
LAWS = [case for case in CASES if case not in {"one unit, sphere", "no room: p + k = d + 1"}]
"""Cases whose law is compared too: the others have nothing that these lack."""


@pytest.mark.full
@pytest.mark.parametrize("case", LAWS)
def test_chain_has_the_law_of_sgd(case, same_law):
    this, d = CASES[case]
    this = this if this.data.centred else this.with_expectation(sl.Sobol(6, 2))  # both levels by the same few points
    times = np.array([1, 10, 300]) / d
    arguments = dict(t_max=times[-1], runs=3000, save=times, progress=False)
    chain = sl.simulate(this, sl.Chain(d), sl.RandomInit(d), seed=1, **arguments)
    direct = sl.simulate(this, sl.SGD(d), sl.RandomInit(d), seed=2, **arguments)
    names = ("a", "M", "Q", "risk")
    same_law({n: chain[n].values for n in names}, {n: direct[n].values for n in names})


@eqx.filter_jit
def after_step(process, state, numbers):
    """State and statistics after one step of a process."""
    state = process.step(state, numbers, StepTime(0.0, 0.0))
    return state, process.statistics(state)


@pytest.mark.parametrize("case", CASES)
def test_given_the_same_input_one_update_of_the_chain_is_that_of_the_weights(case):
    this, d = CASES[case]
    p, k, runs = this.network.width, this.target.teachers, 50
    start = sl.RandomInit(d).sample(this, runs=runs, seed=3)
    chain, weights = FrameChain(this, d), WeightProcess(this, d)
    frame, W = chain.start(start), weights.start(start)
    rng = np.random.default_rng(4)
    x, z, c = rng.normal(size=(runs, d)), rng.normal(size=runs), np.zeros(runs, int)
    for _ in range(3):
        q = min(p, d - k)
        along, outside = in_frame(np.asarray(W.W)[:, :, k:], np.asarray(frame.T), x[:, k:], q)
        along, none = np.pad(along, ((0, p - q), (0, 0))), np.zeros((0, runs))
        # the chain adds the centre of the class and multiplies by sigma
        sigma, centre = float(this.data.sigma), np.asarray(this.data.centre(this.frame, c[None]))
        inside = (x[:, :k].T[:, None] - centre) / sigma
        parts = (inside, along[:, None] / sigma, outside[None] / sigma**2, none, z[None], c[None])
        frame, exact = after_step(chain, frame, StepCoordinates(*parts))
        W, direct = after_step(weights, W, Batch(x[None], z[None], c[None]))
        for left, right in zip(jax.tree.leaves(exact), jax.tree.leaves(direct), strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-12, atol=1e-12)
        x, z = rng.normal(size=(runs, d)), rng.normal(size=runs)


def in_frame(W, T, x, q):
    """Coordinates of x along the orthonormal directions in which the rows of W are the rows of T, and the rest squared."""
    runs = W.shape[0]
    along, outside = np.empty((q, runs)), np.empty(runs)
    for run in range(runs):
        factor = T[:q, :, run].T  # W = factor @ directions
        directions = np.linalg.lstsq(factor, W[run], rcond=None)[0]
        along[:, run] = directions @ x[run]
        outside[run] = max(0.0, x[run] @ x[run] - along[:, run] @ along[:, run])
    return along, outside


@pytest.mark.parametrize(
    ("p", "k", "d", "sphere"), [(1, 1, 12, True), (3, 2, 12, False), (5, 2, 7, True), (4, 2, 5, False), (3, 1, 2, True)]
)
def test_random_start_has_the_law_of_real_vectors(p, k, d, sphere, same_law):
    this = problem(p, k, sphere=sphere)
    runs = 4000
    start = sl.RandomInit(d).sample(this, runs=runs, seed=5)
    rng = np.random.default_rng(6)
    W = rng.normal(size=(runs, p, d)) / np.sqrt(d)
    if sphere:
        W /= np.linalg.norm(W, axis=-1, keepdims=True)
    M, Q = W[:, :, :k] @ np.asarray(this.frame).T, W @ np.swapaxes(W, 1, 2)
    same_law({"M": start.M, "Q": start.Q}, {"M": M, "Q": Q})


def test_embedded_weights_have_the_given_statistics(random_overlaps):
    this = problem(4, 2)
    stats = random_overlaps(this, seed=7)
    W = WeightProcess(this, 30).start(jax.tree.map(lambda leaf: leaf[None], stats))
    for left, right in zip(jax.tree.leaves(WeightProcess(this, 30).statistics(W)), jax.tree.leaves(stats), strict=True):
        np.testing.assert_allclose(left[0], right, atol=1e-13)
