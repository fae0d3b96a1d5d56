"""Steps of several samples: exact at finite d, and the problem with lr over the batch as d grows."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

import sgdlimits as sl
from sgdlimits.kernel.base import StepTime
from sgdlimits.kernel.random import Stream
from sgdlimits.level.chain import FrameChain
from sgdlimits.level.sgd import Batch, WeightProcess
from sgdlimits.model import Data
from sgdlimits.papers.mediocrity import theory as mediocrity
from sgdlimits.statistics.frame import StepCoordinates
from sgdlimits.statistics.triangular import append_row, gram_schmidt

GRAM = [[1.0, 0.4], [0.4, 0.8]]
MIXTURE = Data(weights=jnp.array([0.3, 0.7]), means=jnp.array([[1.0], [-0.6]]), sigma=jnp.asarray(0.8))


def problem(width, teachers=1, *, activation="square", noise=0.1, data=None, expectation=None, **algorithm):
    return sl.ProjectionProblem(
        data=data,
        target=sl.Target(sl.CommitteeReadout(activation), teachers, noise=noise, gram=GRAM if teachers == 2 else None),
        network=sl.TwoLayer(width, activation),
        loss=sl.SquaredLoss(),
        algorithm=sl.OnePassSGD(**algorithm),
        expectation=expectation,
    )


# Large learning rates, so that what the inputs add outside of the frame shows: erf units and the sphere bear them.
TWO_CLASSES = problem(2, activation="erf", lr=30.0, ridge=0.02, data=MIXTURE, expectation=sl.GaussHermite(3), batch=3)
LAWS = {
    "more samples than units, two classes, ridge": (TWO_CLASSES, 6),
    "fewer dimensions outside than samples, sphere": (problem(3, lr=4.0, sphere=True, batch=3), 6),
}
UPDATES = {
    "more samples than units, sphere, second layer": (problem(2, lr=0.6, lr_second=0.3, sphere=True, batch=3), 9),
    "fewer samples than units, ridge": (problem(3, 2, lr=0.1, ridge=0.2, batch=2), 12),
    "no room: p + k > d, sphere": (problem(3, 2, lr=0.3, sphere=True, batch=4), 4),
}


@pytest.mark.full
@pytest.mark.parametrize("case", LAWS)
def test_chain_has_the_law_of_sgd(case, same_law):
    this, d = LAWS[case]
    times = np.array([1, 4, 100]) * 3 / d
    arguments = dict(t_max=times[-1], runs=3000, save=times, progress=False)
    chain = sl.simulate(this, sl.Chain(d), sl.RandomInit(d), seed=1, **arguments)
    direct = sl.simulate(this, sl.SGD(d), sl.RandomInit(d), seed=2, **arguments)
    names = ("a", "M", "Q")
    same_law({n: chain[n].values for n in names}, {n: direct[n].values for n in names})


@pytest.mark.parametrize("case", UPDATES)
def test_given_the_same_inputs_one_update_of_the_chain_is_that_of_the_weights(case):
    this, d = UPDATES[case]
    k, b, runs = this.target.teachers, this.algorithm.batch, 5
    start = sl.RandomInit(d).sample(this, runs=runs, seed=3)
    chain, weights = FrameChain(this, d), WeightProcess(this, d)
    frame, W = chain.start(start), weights.start(start)
    rng = np.random.default_rng(4)
    x, z, c = rng.normal(size=(b, runs, d)), rng.normal(size=(b, runs)), np.zeros((b, runs), int)
    fields, fixed = np.einsum("rpd,brd->pbr", W.W, x), np.einsum("ks,brs->kbr", this.frame, x[:, :, :k])
    G = np.asarray(eqx.filter_jit(this.model.gradient)(fields, fixed, np.broadcast_to(W.a.T[:, None], fields.shape), z, c)[0])
    T, outside = np.asarray(frame.T), np.asarray(W.W)[:, :, k:]
    rests = [of_one_run(T[:, :, run], outside[run], x[:, run, k:], G[:, :, run]) for run in range(runs)]
    samples = StepCoordinates(
        x[:, :, :k].transpose(2, 0, 1), *(np.stack(part, axis=-1) for part in zip(*rests, strict=True)), z, c
    )
    moved, after = after_step(chain, frame, samples), after_step(weights, W, Batch(x, z, c))
    for left, right in zip(jax.tree.leaves(moved), jax.tree.leaves(after), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-11, atol=1e-11)


@eqx.filter_jit
def after_step(process, state, numbers):
    """The statistics after one step of a process."""
    return process.statistics(process.step(state, numbers, StepTime(0.0, 0.0)))


def of_one_run(T, W, x, G):
    """Coordinates of inputs x along the directions in which the rows of W are those of T, and Bartlett's numbers of the rests.

    Those of the inputs themselves, or of p combinations of them with the covariance of what they add to the weights.
    """
    p, b = G.shape
    room = min(p, W.shape[1])
    directions = np.linalg.lstsq(T[:room].T, W, rcond=None)[0]
    along = np.pad(directions @ x.T, ((0, p - room), (0, 0)))
    rests = x - (directions @ x.T).T @ directions
    mixed = rests if b <= p else np.linalg.solve(np.linalg.cholesky(G @ G.T), G @ rests)
    A = np.linalg.qr(mixed.T, mode="r").T if np.abs(rests).max() > 1e-9 else np.zeros((min(b, p), 0))
    A = np.pad(A, ((0, 0), (0, min(b, p) - A.shape[1])))
    A = A * np.where(np.diagonal(A) < 0, -1.0, 1.0)
    return along, np.diagonal(A) ** 2, A[np.tril_indices(min(b, p), -1)]


def one_step(this, d, start, runs, seed=0):
    """Statistics of many runs after one step of the chain."""
    chain = FrameChain(this, d)
    starts = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (runs, *leaf.shape)), start)
    samples = jax.tree.map(lambda leaf: leaf[0], drawn(chain, Stream.from_seed(seed, np.arange(runs))))
    return after_step(chain, chain.start(starts), samples)


@eqx.filter_jit
def drawn(process, stream):
    """The random numbers of a process."""
    return process.draw(stream)


def test_mean_of_one_step_of_linear_units_is_exact():
    """The residual is v.x + noise, G_j = s_j (v.x + noise): all moments are known, those of two samples of a batch too."""
    lr, ridge, noise, batch, d, runs = 2.0, 0.3, 0.2, 2, 7, 20_000
    this = problem(3, 2, activation="linear", noise=noise, lr=lr, ridge=ridge, batch=batch)
    W = np.random.default_rng(5).normal(size=(3, d)) / 2
    teachers = np.pad(np.asarray(this.frame), ((0, 0), (0, d - 2)))
    after = one_step(this, d, sl.Overlaps(np.ones(3), W @ teachers.T, W @ W.T), runs)
    v, s, keep = W.mean(0) - teachers.mean(0), np.full(3, 1 / 3), 1 - lr * ridge / d
    cross = np.outer(s, W @ v)
    spread = ((d + 2) * v @ v + d * noise + (batch - 1) * v @ v) / batch
    Q = keep**2 * W @ W.T - keep * lr / d * (cross + cross.T) + (lr / d) ** 2 * np.outer(s, s) * spread
    M = keep * W @ teachers.T - lr / d * np.outer(s, teachers @ v)
    for got, exact in ((np.asarray(after.Q), Q), (np.asarray(after.M), M)):
        assert (np.abs(got.mean(0) - exact) < 5 * got.std(0) / np.sqrt(runs)).all()


@pytest.mark.full
def test_mean_of_one_step_is_that_of_a_plain_loop():
    """More samples than units and than dimensions outside, at a learning rate that lets the inputs decide what Q becomes."""
    this, d, runs = problem(2, activation="erf", lr=20.0, lr_second=0.4, batch=4), 5, 20_000
    rng = np.random.default_rng(6)
    W, a = rng.normal(size=(2, d)) / 2, np.array([0.8, 1.3])
    after = one_step(this, d, sl.Overlaps(a, W[:, :1], W @ W.T), runs)
    x, z = rng.normal(size=(runs, 4, d)), rng.normal(size=(runs, 4))
    fields = x @ W.T
    units = erf(fields / np.sqrt(2))
    error = ((units @ a) / 2 - erf(x[:, :, 0] / np.sqrt(2)) - np.sqrt(0.1) * z)[:, :, None]
    G = error * a / 2 * np.sqrt(2 / np.pi) * np.exp(-(fields**2) / 2)
    moved = W - 20 / d * np.einsum("nbp,nbd->npd", G, x) / 4
    plain = (a - 0.4 / d * (error * units / 2).mean(1), moved[:, :, :1], moved @ np.swapaxes(moved, 1, 2))
    for left, right in zip((after.a, after.M, after.Q), plain, strict=True):
        left, spread = np.asarray(left), np.sqrt((np.var(left, 0) + np.var(right, 0)) / runs)
        assert (np.abs(left.mean(0) - right.mean(0)) < 5 * spread).all()


def test_sgd_sees_the_same_samples_whatever_the_batch():
    one, three = (WeightProcess(problem(2, lr=0.3, data=MIXTURE, batch=batch), 9) for batch in (1, 3))
    single, together = (
        drawn(one, Stream.from_seed(7, np.arange(4), steps=6)),
        drawn(three, Stream.from_seed(7, np.arange(4), steps=2)),
    )
    for left, right in zip(single[:3], together[:3], strict=True):  # inputs, label noise and classes
        np.testing.assert_array_equal(left.reshape(right.shape), right)


BATCHED = problem(2, noise=0.1, lr=0.8, sphere=True, batch=4)
START = sl.Overlaps([1.0, 1.0], [[0.3], [-0.2]], [[1.0, 0.2], [0.2, 1.0]])
SIZES, RUNS, TIMES = (1000, 8000), 2048, np.linspace(0.24, 0.96, 4)


@pytest.fixture(scope="module")
def chains():
    arguments = dict(t_max=TIMES[-1], runs=RUNS, save=TIMES, seed=8, progress=False)
    return {d: sl.simulate(BATCHED, sl.Chain(d), START, **arguments) for d in SIZES}


@pytest.mark.full
def test_gap_to_ode_shrinks_as_inverse_root_d(chains):
    """Each gap is known to about 1 %, the exponent to 0.007."""
    ode = sl.simulate(BATCHED, sl.ODE(), START, t_max=TIMES[-1], save=TIMES).isel(run=0, drop=True)
    gaps = []
    for chain in chains.values():
        np.testing.assert_allclose(chain.t, TIMES, rtol=1e-12)
        distance = sum(((chain[name] - ode[name]) ** 2).sum(chain[name].dims[2:]) for name in ("M", "Q")) ** 0.5
        gaps.append(float(distance.mean("run").max("t")))
    exponent = np.polyfit(np.log(SIZES), np.log(gaps), 1)[0]
    print(f"fitted exponent {exponent:.4f}, gaps {np.round(gaps, 5)}")
    assert abs(exponent + 0.5) < 0.03


@pytest.mark.full
def test_sde_has_the_variance_of_the_chain(chains):
    """The ratio of two variances of 2048 runs is known to 5 %; with the learning rate itself it would be about four."""
    d = SIZES[-1]
    sde = sl.simulate(
        BATCHED, sl.SDE(d, dt=0.03, samples=64), START, t_max=TIMES[-1], runs=RUNS, save=TIMES, seed=9, progress=False
    )
    np.testing.assert_array_equal(sde.step, chains[d].step)
    ratios = np.stack([(sde[name].var("run") / chains[d][name].var("run")).values[..., 0, -1] for name in ("M", "Q")])
    print(f"variance of the SDE over that of the chain: {np.round(ratios, 3)}")
    assert np.abs(ratios - 1).max() < 0.25
    shift = [abs(sde[name].mean("run") - chains[d][name].mean("run")) / chains[d][name].std("run") for name in ("M", "risk")]
    assert all(float(each.max()) < 5 * np.sqrt(2 / RUNS) for each in shift)


@pytest.mark.full  # the contract of the schema has this for batches of three
def test_step_counts_steps_and_time_samples(chains):
    for d, chain in chains.items():
        np.testing.assert_allclose(chain.step * 4 / d, chain.t)
        assert chain.step.attrs["long_name"] == "SGD steps"


def test_limits_are_those_of_the_learning_rate_over_the_batch(random_overlaps):
    batch = problem(2, lr=0.6, lr_second=0.3, ridge=0.3, sphere=True, batch=6)
    single = problem(2, lr=0.1, lr_second=0.05, ridge=0.3, sphere=True)
    stats = random_overlaps(batch)
    limits = eqx.filter_jit(lambda this: (this.drift_parts(stats), this.covariance(stats)))
    for left, right in zip(jax.tree.leaves(limits(batch)), jax.tree.leaves(limits(single)), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("average", ["annealed", "quenched", "noisy", "sde"])
def test_exit_times_of_the_theory_are_those_of_the_learning_rate_over_the_batch(average):
    single = sl.presets.phase_retrieval(lr=0.05, noise=0.1)
    batch = eqx.tree_at(lambda this: this.algorithm, single, sl.OnePassSGD(0.2, sphere=True, batch=4))
    times = (mediocrity.exit_time(this, 1000, 0.2, average) for this in (batch, single))
    np.testing.assert_allclose(*times, rtol=1e-12)


def test_presets_take_batches_and_refuse_what_is_none():
    assert sl.presets.committee(2, 2, batch=8).numerics.samples_per_step == 8
    assert sl.presets.single_index("he2", batch=3).numerics.samples_per_step == 3
    assert float(sl.presets.committee(2, lr=0.8, batch=8).rate) == pytest.approx(0.05)
    for wrong in (0, -1, 1.5, "many"):
        with pytest.raises(sl.BadInput, match="batch must be an integer of at least 1"):
            sl.presets.committee(batch=wrong)
    with pytest.raises(sl.BadInput, match=r"at least one step, 3/d = 0\.3"):
        sl.simulate(sl.presets.single_index("he2", batch=3), sl.Chain(10), sl.FixedInit(0.1), t_max=0.1)


def test_triangular_factors_keep_the_gram_matrix_also_where_rows_vanish():
    """A unit within the span of the fixed directions that has no gradient has a row of zeros."""
    rng = np.random.default_rng(10)
    X = rng.normal(size=(6, 4, 1))
    X[:, 0] = X[:, 2] = 0
    T = np.tril(rng.normal(size=(4, 4)))
    T[0] = T[2] = 0
    v = np.array([0.0, 1.0, 0.0, 2.0])
    for factor, gram in (
        (gram_schmidt(jnp.asarray(X)), X[:, :, 0].T @ X[:, :, 0]),
        (append_row(jnp.asarray(T.T[:, :, None]), jnp.asarray(v[:, None])), T @ T.T + np.outer(v, v)),
    ):
        L = np.asarray(factor)[:, :, 0].T
        assert (np.triu(L, 1) == 0).all()
        np.testing.assert_allclose(L @ L.T, gram, atol=1e-14)
