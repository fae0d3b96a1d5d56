"""SGD on rows and on samplers: it has the law of the chain if inputs are Gaussian, and another one if they are not."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy import stats as st

import sgdlimits as sl

D, RUNS = 30, 1000


def committee(inputs, **target):
    return sl.ProjectionProblem(
        data=inputs,
        target=sl.Target(sl.CommitteeReadout("erf"), **{"noise": 0.1, **target}),
        network=sl.TwoLayer(2, "erf"),
        loss=sl.SquaredLoss(),
        algorithm=sl.OnePassSGD(lr=1.5),
        expectation=sl.Sobol(6, 2),
    )


def finals(own, level, seed, runs=RUNS, start=None):
    found = sl.simulate(
        own, level, sl.RandomInit(D) if start is None else start, t_max=3, runs=runs, seed=seed, save=2, progress=False
    )
    total = lambda leaf: leaf.sum(1) if leaf.ndim == 4 else leaf
    return [total(found[name].values[:, -1]).reshape(runs, -1) for name in ("M", "Q")]


def gaps(ours, theirs):
    """Smallest p-value of Kolmogorov-Smirnov tests, and largest gap of the means in standard errors."""
    pairs = [(x, y) for one, other in zip(ours, theirs, strict=True) for x, y in zip(one.T, other.T, strict=True)]
    error = [np.hypot(x.std() / len(x) ** 0.5, y.std() / len(y) ** 0.5) for x, y in pairs]
    return min(st.ks_2samp(x, y).pvalue for x, y in pairs), max(
        abs(x.mean() - y.mean()) / e for (x, y), e in zip(pairs, error, strict=True)
    )


@pytest.mark.parametrize(
    ("draw", "same"),
    [
        (lambda key, d: jax.random.normal(key, (d,)), True),
        pytest.param(lambda key, d: jax.random.rademacher(key, (d,), float), None, marks=pytest.mark.full),
        (
            lambda key, d: jax.random.normal(key, (d,)) * jax.random.choice(jax.random.split(key)[1], np.array([0.0, 2**0.5])),
            False,
        ),
    ],
    ids=["Gaussian", "signs", "scaled"],
)
def test_sampler_has_the_law_of_the_chain_if_it_is_gaussian(draw, same):
    """Six statistics: a false alarm of p below 1e-4 has the rate 6e-4. Signs differ at order 1/d, and are not tested alike."""
    own = committee(sl.inputs.sampler(draw))
    p, far = gaps(finals(own, sl.SGD(D), 1), finals(own, sl.Chain(D), 2))
    if same is None:
        assert far < 10
    else:
        assert (p > 1e-4 and far < 4.5) if same else (p < 1e-10 and far > 10)


@pytest.mark.full
def test_rows_of_a_mixture_have_the_law_of_the_fitted_chain():
    """With 40,000 Gaussian rows of two classes in three blocks, SGD on rows is the chain up to sampling errors."""
    rng, n = np.random.default_rng(0), 40_000
    c = (rng.random(n) < 0.4).astype(int)
    X = rng.normal(size=(n, D)) * np.sqrt(np.repeat([2.0, 1.0, 0.3], 10)) * np.where(c, 1.2, 0.8)[:, None]
    X[:, :12] += 0.5 * (2 * c[:, None] - 1)
    fit = sl.inputs.from_data(X, labels=c, blocks=3)
    own = committee(fit.rows, gram=fit.gram / fit.gram.sum())
    p, far = gaps(finals(own, sl.SGD(D), 1), finals(own, sl.Chain(D), 2))
    assert p > 1e-4
    assert far < 5


@pytest.mark.parametrize("level", [sl.Chain(D), sl.SGD(D)], ids=["chain", "sgd"])
def test_block_of_one_dimension_without_teacher(level):
    """Its only axis belongs to the frame, although no fixed direction lies along it: the start must be kept."""
    gram = np.array([[[0.0]], [[0.6]], [[0.4]]])
    own = sl.ProjectionProblem(
        data=sl.inputs.gaussian(sl.Spectrum([3.0, 1.0, 0.0], [1 / D, 0.5 - 1 / D, 0.5])),
        target=sl.Target(sl.CommitteeReadout("linear"), gram=gram),
        network=sl.TwoLayer(1, "linear"),
        loss=sl.SquaredLoss(),
        algorithm=sl.OnePassSGD(lr=0.5),
    )
    start = sl.Overlaps([1.0], [[[0.0]], [[0.2]], [[0.1]]], [[[0.3]], [[0.5]], [[0.6]]])
    runs = sl.simulate(own, level, start, t_max=2, runs=400, save=2, seed=3, progress=False)
    np.testing.assert_allclose(runs.Q.values[:, 0, :, 0, 0], np.tile([0.3, 0.5, 0.6], (400, 1)), rtol=1e-9)
    np.testing.assert_allclose(runs.Q.values[:, -1, 2, 0, 0], 0.6, rtol=1e-9)  # silent
    # the mean over inputs of a linear unit closes: the ODE without corrector bias of order 1/d, here at five standard errors
    rng = np.random.default_rng(5)
    u = np.tile(np.r_[np.sqrt(0.3), _block(0.2, 0.6, 0.5, D // 2 - 1), _block(0.1, 0.4, 0.6, D // 2)], (4000, 1))
    e = np.r_[0.0, np.sqrt(0.6), np.zeros(D // 2 - 2), np.sqrt(0.4), np.zeros(D // 2 - 1)]
    for _ in range(2 * D):
        x = rng.normal(size=u.shape) * np.sqrt(np.r_[3.0, np.ones(D // 2 - 1), np.zeros(D // 2)])
        u = u - 0.5 / D * ((u - e) * x).sum(1, keepdims=True) * x
    ours, theirs = runs.Q.values[:, -1, 0, 0, 0], u[:, 0] ** 2
    assert st.ks_2samp(ours, theirs).pvalue > 1e-4


def _block(m, P, Q, size):
    """Weights in a block with the overlap m with a teacher of squared length P along the first axis, and squared length Q."""
    along = m / np.sqrt(P)
    return np.r_[along, np.sqrt(Q - along**2), np.zeros(size - 2)]


@pytest.mark.full
def test_gap_to_the_ode_with_blocks_falls_as_inverse_root_d():
    own = sl.ProjectionProblem(
        data=sl.inputs.gaussian(sl.Spectrum([2.0, 1.0, 0.3], [0.1, 0.4, 0.5])),
        target=sl.Target(sl.CommitteeReadout("erf"), noise=0.1),
        network=sl.TwoLayer(2, "erf"),
        loss=sl.SquaredLoss(),
        algorithm=sl.OnePassSGD(lr=1.5),
    )
    start = sl.RandomInit(100).one(own)
    theory = sl.simulate(own, sl.ODE(), start, t_max=3, save=2, progress=False).Q.values[0, -1]
    rms = []
    for d in (100, 1000, 10_000):
        runs = sl.simulate(own, sl.Chain(d), start, t_max=3, runs=300, save=2, seed=1, progress=False)
        rms.append(np.sqrt(np.mean((runs.Q.values[:, -1] - theory) ** 2)))
    slope = np.polyfit(np.log([100, 1000, 10_000]), np.log(rms), 1)[0]
    assert -0.55 < slope < -0.45  # the standard error of an rms of 300 runs is 4%, that of the slope 0.01
