"""SGD on a fixed number of samples, again and again: beside plain NumPy in R^d, least squares, and SGD with fresh samples."""

from __future__ import annotations

import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.kernel.random import Stream
from sgdlimits.level.finite_data import DatasetProcess, SpanProcess, _continue_shuffle
from sgdlimits.level.sgd import WeightProcess

ROOM = 5.0
"""Standard errors: false alarms below 1e-6."""
D, WIDTH, NOISE, LR, RUNS = 12, 2, 0.09, 4.0, 3000


def committee(batch: int = 1, **data) -> sl.ProjectionProblem:
    """Two erf units learn one of their kind."""
    problem = sl.presets.committee(WIDTH, 1, "erf", noise=NOISE, algorithm=sl.OnePassSGD(LR, batch=batch))
    return problem.replace(data=sl.Reused(**data)) if data else problem


def start_of(problem):
    """Overlaps of one run, and weights in R^D that have them; the first axis is the teacher."""
    stats = sl.FixedInit(0.3).one(problem)
    M, Q = np.asarray(stats.M), np.asarray(stats.Q)
    W = np.zeros((WIDTH, D))
    W[:, :1], W[:, 1 : 1 + WIDTH] = M, np.linalg.cholesky(Q - M @ M.T)
    return W


def erf_risk(M, Q):
    """The risk of the committee by the arcsines of Saad and Solla."""
    cosine = lambda c, a, b: 2 / np.pi * np.arcsin(c / np.sqrt((1 + a) * (1 + b)))
    q = np.diagonal(Q, axis1=1, axis2=2)
    students = cosine(Q, q[:, :, None], q[:, None]).mean((1, 2))
    return 0.5 * (students - 2 * cosine(M[:, :, 0], q, 1.0).mean(1) + 1 / 3 + NOISE)


def plain_sgd(problem, n, order, batch, steps, seed, fresh=False):
    """M, Q and both risks after some steps of a NumPy loop in R^D."""
    from scipy.special import erf

    rng, runs = np.random.default_rng(seed), np.arange(RUNS)[:, None]
    units = lambda fields: erf(fields / np.sqrt(2))
    slope = lambda fields: np.sqrt(2 / np.pi) * np.exp(-(fields**2) / 2)
    W = np.repeat(start_of(problem)[None], RUNS, axis=0)
    draw = lambda: (rng.standard_normal((RUNS, n, D)), np.sqrt(NOISE) * rng.standard_normal((RUNS, n)))
    (X, z), taken = draw(), np.zeros((RUNS, 0), int)
    for step in range(steps):
        while taken.shape[1] < (step + 1) * batch:
            epoch = np.tile(np.arange(n), (RUNS, 1))
            epoch = {"cyclic": epoch, "shuffled": rng.permuted(epoch, axis=1), "random": rng.integers(n, size=(RUNS, n))}[order]
            taken = np.concatenate([taken, epoch], axis=1)
        i = taken[:, step * batch : (step + 1) * batch]
        if fresh:
            X, z = draw()
        x, label = X[runs, i], units(X[runs, i, 0]) + z[runs, i]
        fields = np.einsum("rpd,rbd->rpb", W, x)
        error = units(fields).mean(1) - label
        W = W - LR / D / batch * np.einsum("rb,rpb,rbd->rpd", error, slope(fields) / WIDTH, x)
    M, Q = W[:, :, :1], W @ W.swapaxes(1, 2)
    error = units(np.einsum("rpd,rnd->rpn", W, X)).mean(1) - units(X[:, :, 0]) - z
    return {
        "M": M[:, :, 0],
        "Q": Q[:, [0, 0, 1], [0, 1, 1]],
        "train": (error**2).mean(1)[:, None] / 2,
        "risk": erf_risk(M, Q)[:, None],
    }


def end_of(problem, level, steps, runs=RUNS, seed=1):
    """M, Q and risks at the end of a simulation, in the form of `plain_sgd`."""
    found = sl.simulate(
        problem,
        level,
        sl.FixedInit(0.3),
        t_max=steps * problem.algorithm.batch / D,
        runs=runs,
        save=2,
        seed=seed,
        progress=False,
    ).isel(t=-1)
    risks = {"train": found.train_risk.values[:, None]} if "train_risk" in found else {}
    return {
        "M": found.M.values[:, :, 0],
        "Q": found.Q.values[:, [0, 0, 1], [0, 1, 1]],
        "risk": found.risk.values[:, None],
    } | risks


CASES = [
    ("shuffled", 7, 1, 35), ("cyclic", 7, 1, 35), ("random", 20, 1, 60), ("shuffled", 20, 3, 30), ("cyclic", 20, 20, 20),
    ("random", 7, 7, 20), ("shuffled", 7, 7, 20), ("cyclic", 30, 4, 30),
]  # fmt: skip


@pytest.mark.parametrize(("order", "n", "batch", "steps"), CASES)
def test_chain_over_a_dataset_has_the_law_of_plain_sgd(order, n, batch, steps, same_law):
    """Seven samples leave the span smaller than R^12, twenty and thirty fill it."""
    problem = committee(batch, n=n, order=order)
    same_law(end_of(problem, sl.Chain(D), steps), plain_sgd(problem, n, order, batch, steps, seed=2))


@pytest.mark.full
@pytest.mark.parametrize(("order", "n", "batch", "steps"), CASES[:3])
def test_sgd_over_a_dataset_has_the_law_of_plain_sgd(order, n, batch, steps, same_law):
    problem = committee(batch, n=n, order=order)
    same_law(end_of(problem, sl.SGD(D), steps), plain_sgd(problem, n, order, batch, steps, seed=2))


@pytest.mark.full
def test_fresh_samples_have_another_law(same_law):
    """The control: the loop above with fresh samples in each step."""
    problem = committee(n=7)
    with pytest.raises(AssertionError, match="p-values"):
        same_law(end_of(problem, sl.Chain(D), 35), plain_sgd(problem, 7, "cyclic", 1, 35, seed=2, fresh=True))


def test_a_dataset_that_is_never_used_up_is_one_pass_sgd(same_law):
    once, again = committee(), committee(n=40)
    left, right = end_of(again, sl.Chain(D), 40), end_of(once, sl.Chain(D), 40, seed=3)
    left.pop("train")
    same_law(left, right)


@pytest.mark.full
def test_a_dataset_that_is_used_up_is_not_one_pass_sgd(same_law):
    left = end_of(committee(n=8), sl.Chain(D), 80)
    left.pop("train")
    with pytest.raises(AssertionError, match="p-values"):
        same_law(left, end_of(committee(), sl.Chain(D), 80, seed=3))


DATA = {
    "mixture": sl.mixture([[1.0], [-0.5]], [0.3, 0.7], variance=0.5),
    "blocks": sl.inputs.gaussian(sl.Spectrum([2.0, 0.5], [0.5, 0.5])),
    "variances": sl.mixture([[1.0], [-0.5]], [0.3, 0.7], variance=[[1.0, 0.2], [0.3, 2.0]], shares=[0.5, 0.5]),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.full if name != "mixture" else ()) for name in DATA])
@pytest.mark.parametrize("d", [5, 40])
def test_samples_in_the_span_have_the_scalar_products_of_samples_in_r_d(name, d, same_law):
    """Four samples: at d = 5 there are fewer further dimensions than samples."""
    problem = committee(n=4).replace(data=sl.Reused(4, base=DATA[name]))

    def gram(process, seed):
        data = DatasetProcess(process).draw_dataset(Stream.from_seed(seed, np.arange(4000)))
        x = np.asarray(data.x)
        first = np.asarray(process.frame_coordinates(x))[:, 2:]
        return {"products": (x @ x.swapaxes(1, 2))[:, *np.triu_indices(4)], "first": first.reshape(len(x), -1)}

    same_law(gram(SpanProcess(problem, d), 1), gram(WeightProcess(problem, d), 2))


def test_each_epoch_of_a_shuffled_order_takes_every_sample_once_and_begins_anywhere():
    """Batches of two of five samples, over two epochs; a chi-square of four degrees of freedom, false alarms below 1e-6."""
    order, taken, rng = np.tile(np.arange(5, dtype=np.int32), (2000, 1)), [], np.random.default_rng(0)
    for step in range(5):
        position = (2 * step + np.arange(2)) % 5
        order, picked = _continue_shuffle(order, position, 1 - rng.random((2, 2000)))
        taken.append(np.asarray(picked))
    epochs = np.concatenate(taken).reshape(2, 5, 2000)
    assert (np.sort(epochs, axis=1) == np.arange(5)[:, None]).all()
    for position in range(5):
        counts = np.bincount(epochs[1, position])
        assert ((counts - 400) ** 2 / 400).sum() < 35


def test_samples_of_sgd_are_those_of_one_pass_until_they_come_again():
    problem = sl.presets.phase_retrieval(algorithm=sl.OnePassSGD(0.1, sphere=True, batch=2))
    how = dict(t_max=4, runs=3, save=[1.0, 2.0, 3.0, 4.0], progress=False)
    once, again = (sl.simulate(problem, level, sl.FixedInit(0.3), **how) for level in (sl.SGD(20), sl.SGD(20, reuse=40)))
    same = np.abs(once.M - again.M).max(("run", "student", "teacher")).values
    assert (same[:2] < 1e-13).all()
    assert (same[2:] > 1e-3).all()
    named = sl.simulate(problem.replace(data=sl.Reused(40)), sl.SGD(20), sl.FixedInit(0.3), **how)
    np.testing.assert_array_equal(named.M, again.M)
    np.testing.assert_allclose(again.epoch, [0.5, 1.0, 1.5, 2.0])


def test_gradient_descent_on_the_empirical_risk_ends_at_the_smallest_interpolation(say):
    r"""A linear unit from zero: E M = n/d, and E Q = n/d + noise n/(d - n - 1), the mean trace of an inverse Wishart matrix."""
    d, n, noise, runs = 40, 16, 0.25, 128
    linear = sl.ProjectionProblem(
        sl.Target(sl.CommitteeReadout("he1"), 1, noise=noise),
        sl.TwoLayer(1, "he1"),
        sl.SquaredLoss(),
        sl.OnePassSGD(0.2 * d, batch=n),
        data=sl.Reused(n),
    )
    start = sl.Overlaps([1.0], [[0.0]], [[0.0]])
    end = sl.simulate(linear, sl.Chain(d), start, t_max=400 * n / d, runs=runs, save=2, progress=False).isel(t=-1)
    assert (end.train_risk < 1e-8).all()
    for name, expected in (("M", n / d), ("Q", n / d + noise * n / (d - n - 1))):
        values = end[name].values.ravel()
        error = values.std(ddof=1) / np.sqrt(runs)
        say(f"{name}: {values.mean():.4f} ± {error:.4f}, in theory {expected:.4f}")
        assert abs(values.mean() - expected) < ROOM * error


@pytest.mark.full
def test_gradient_descent_follows_the_law_of_marchenko_and_pastur(say):
    """Linear labels with noise, half as many samples as dimensions and twice as many: the limit of large d, up to 1/d."""
    from sgdlimits.papers.new_results.figures.double_descent import _descend, _problem, descent_limit

    d, noise, runs, steps = 200, 0.25, 24, np.array([5, 50])
    for n in (100, 400):
        lr = 0.9 / (1 + np.sqrt(d / n)) ** 2
        end = _descend(_problem(n, lr * d, noise, sl.inputs.gaussian()), d, n, steps, runs, seed=1)
        excess, limit = 2 * end.risk.values - noise, descent_limit(n / d, noise, steps, lr)
        error = excess.std(0, ddof=1) / np.sqrt(runs)
        say(f"n = {n}: {excess.mean(0).round(4)} ± {error.round(4)}, limit {limit.round(4)}")
        assert (np.abs(excess.mean(0) - limit) < ROOM * error + 2 / d).all()


@pytest.mark.full
def test_momentum_dropout_and_classes_follow_sgd_over_a_dataset(same_law):
    """Masks are drawn anew for the same samples, and classes have an accuracy: the chain and SGD in R^d."""
    problem = sl.ProjectionProblem(
        sl.Target(sl.ClassLabels([0.0, 1.0]), 1),
        sl.TwoLayer(2, "tanh", dropout=0.3),
        sl.CrossEntropy(),
        sl.HeavyBall(2.0, 0.5, ridge=0.1),
        data=sl.Reused(9, "shuffled", base=sl.mixture([[1.0], [-1.0]], variance=0.5)),
        expectation=sl.Sobol(3, 2),
    )
    ends, right = [], []
    for level, seed in ((sl.Chain(D), 1), (sl.SGD(D), 2)):
        end = sl.simulate(problem, level, sl.FixedInit(0.3), t_max=3, runs=800, save=2, seed=seed, progress=False).isel(t=-1)
        ends.append({name: end[name].values.reshape(800, -1) for name in ("M", "Q", "train_risk")})
        right.append(end.train_accuracy.values)  # one of ten values: means are compared
    same_law(*ends)
    assert abs(right[0].mean() - right[1].mean()) < ROOM * np.sqrt(2 / 800) * np.std(right)
    assert np.isin(np.rint(9 * np.concatenate(right)), np.arange(10)).all()


def refuse(match, problem, level, **more):
    with pytest.raises(sl.BadInput, match=match):
        sl.simulate(problem, level, sl.FixedInit(0.3), t_max=1, progress=False, **more)


def test_what_cannot_be_reused_is_said():
    private = sl.presets.phase_retrieval(algorithm=sl.Private(sl.OnePassSGD(0.1), norm=1.0, noise=0.1))
    refuse("Private adds noise of its own, which cannot be reused", private, sl.SGD(20, reuse=40))
    with pytest.raises(sl.BadInput, match="reuse does not support SpikedTensor"):
        sl.simulate(sl.presets.spiked_tensor(2, 2.0), sl.SGD(20, reuse=40), sl.RandomInit(20), t_max=1, progress=False)
    with pytest.raises(sl.BadInput, match="reuse must be an integer"):
        sl.SGD(20, reuse=0)
    problem = committee(n=20)
    refuse("has a dataset of its own", problem, sl.SGD(D, reuse=5))
    refuse("reuses 20 samples. Use Chain", problem, sl.ODE())
    refuse("reuses 20 samples. Use Chain", problem, sl.SDE(D))
    refuse("reuses 20 samples. Use Chain", problem, sl.MeanField())
    refuse("reuses 20 samples. Use Chain", problem, sl.Local(sl.FixedInit(0.3).one(problem), D))
    refuse("a batch of 3 has more samples than the dataset, n = 2", committee(3, n=2), sl.Chain(D))
    refuse("treats coordinates separately", problem.with_algorithm(sl.Adam(0.1)), sl.Chain(D))
    refuse("does not support reused data", problem, sl.Chain(D), kernel="lanes")
    refuse("machine.*smaller batch, width, d or dataset", committee(n=2_000_000), sl.Chain(10**7))
    refuse("labels of a dataset are fixed", problem.replace(noise=sl.Linear([0, 1], [0.1, 0.2])), sl.Chain(D))
    for analysis in (
        problem.drift,
        problem.covariance,
        lambda stats: sl.effective_dynamics(problem).h(stats),
        lambda stats: sl.latex(problem),
    ):
        with pytest.raises(sl.BadInput, match=r"reuses 20 samples\. Use Chain"):
            analysis(sl.FixedInit(0.3).one(problem))
    for n in (0, -3, 2.5, "many"):
        with pytest.raises(sl.BadInput, match="n must be"):
            sl.Reused(n)
    with pytest.raises(sl.BadInput, match="order must be one of cyclic, shuffled, random"):
        sl.Reused(5, "sorted")
    with pytest.raises(sl.BadInput, match="cannot change with time"):
        sl.Reused(5, base=sl.mixture([[0.0], [1.0]], variance=sl.Linear([0, 1], [0.1, 0.2])))
