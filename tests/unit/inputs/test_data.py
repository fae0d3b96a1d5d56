"""Inputs made from data: moments, rotations, labels, tests of Gaussian fields, samplers, and refusals."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy import stats as st

import sgdlimits as sl
from sgdlimits.inputs.data import measure, merge_eigenvalues
from sgdlimits.inputs.gaussianity import length_ratio, measure_fields
from sgdlimits.kernel.random import Stream
from sgdlimits.statistics.blocks import block_factor

D, N = 12, 600


def data(seed=0, n=N):
    rng = np.random.default_rng(seed)
    O = np.linalg.qr(rng.normal(size=(D, D)))[0]
    X = (rng.normal(size=(n, D)) * np.sqrt(np.repeat([4.0, 1.0, 0.2], [2, 4, 6]))) @ O.T + 3.0
    return X, X @ rng.normal(size=D) + 0.5 * rng.normal(size=n) - 7.0, (rng.random(n) < 0.3).astype(int)


def problem(rows, **target):
    return sl.ProjectionProblem(
        data=rows,
        target=sl.Target(sl.CommitteeReadout("linear"), **target),
        network=sl.TwoLayer(1, "linear"),
        loss=sl.SquaredLoss(),
        algorithm=sl.OnePassSGD(lr=0.5),
    )


def test_fit_has_the_moments_of_the_data():
    X, y, _ = data()
    fit = sl.inputs.from_data(X, y, blocks=3)
    values, sizes = np.linalg.eigvalsh(np.cov(X.T, bias=True))[::-1], fit.inputs.block_sizes(D)
    np.testing.assert_allclose(fit.eigenvalues, values, rtol=1e-10)
    assert sizes == (2, 4, 6)
    np.testing.assert_allclose(fit.inputs.variance[0] @ sizes, values.sum(), rtol=1e-10)
    w = np.linalg.lstsq(X - X.mean(0), y - y.mean(), rcond=None)[0]
    prediction = (X - X.mean(0)) @ w
    np.testing.assert_allclose((fit.inputs.variance[0] * fit.gram.ravel()).sum(), prediction.var(), rtol=1e-10)
    np.testing.assert_allclose(fit.noise, (y - y.mean() - prediction).var(), rtol=1e-10)
    assert "Gaussian inputs fitted to 600 rows" in repr(fit)


def test_rows_are_rotated_so_that_fixed_directions_lie_along_the_first_axes_of_blocks():
    X, y, c = data()
    X = X + 2.0 * c[:, None] * np.eye(D)[0]
    moments = measure(X, y, c, 3)
    centred = X - X.mean(0)
    np.testing.assert_allclose(moments.rows @ moments.rows.T, centred @ centred.T, atol=1e-9)
    centres = np.stack([moments.rows[c == i].mean(0) for i in (0, 1)])
    B = block_factor(moments.gram)
    edges = np.cumsum(moments.sizes)[:-1]
    for b, part in enumerate(np.split(centres, edges, axis=1)):
        np.testing.assert_allclose(part[:, :2], moments.means @ B[b], atol=1e-9)
        np.testing.assert_allclose(part[:, 2:], 0.0, atol=1e-9)
    np.testing.assert_allclose(moments.weights, [1 - c.mean(), c.mean()])
    within = [np.trace(np.cov(X[c == i].T, bias=True)) for i in (0, 1)]
    np.testing.assert_allclose(moments.variance @ moments.sizes, within, rtol=1e-9)


def test_sgd_on_rows_in_given_order_is_the_plain_loop():
    X, y, _ = data(n=10)
    rows = sl.inputs.Rows(X, y, blocks=2, order="given")
    own = problem(rows, gram=rows.gram, noise=rows.noise)
    start = sl.RandomInit(D).one(own)
    runs = sl.simulate(own, sl.SGD(D), start, t_max=25 / D, runs=2, save=2, progress=False)
    from sgdlimits.level.sgd import sgd_process

    u = np.asarray(sgd_process(own, D).start(jax.tree.map(lambda leaf: np.asarray(leaf)[None], start)).W)[0, 0]
    for step in range(25):
        x, label = rows.x[step % 10], (y - y.mean())[step % 10]
        u = u - 0.5 / D * (u @ x - label) * x
    parts = np.split(u, np.cumsum(rows.block_sizes(D))[:-1])
    np.testing.assert_allclose(runs.Q.values[0, -1].ravel(), [part @ part for part in parts], rtol=1e-9)
    np.testing.assert_allclose(runs.risk.values[:, -1], np.mean((rows.x @ u - rows.y) ** 2) / 2, rtol=1e-9)


def test_random_rows_are_drawn_uniformly():
    rows = sl.inputs.Rows(data(n=10)[0])
    drawn = np.asarray(rows._draw_indices(Stream.from_seed(3, np.arange(500), steps=8), 2)).ravel()
    assert st.chisquare(np.bincount(drawn, minlength=10)).pvalue > 1e-4  # the rate of false alarms


def test_field_tests_are_those_of_scipy():
    x = np.random.default_rng(0).exponential(size=(500, 1))
    x = (x - x.mean()) / x.std()
    ours = measure_fields("one", x)
    assert ours.skewness == pytest.approx(abs(st.skew(x[:, 0])))
    assert ours.kurtosis == pytest.approx(st.kurtosis(x[:, 0]))
    assert ours.distance == pytest.approx(st.kstest(x[:, 0], "norm").statistic)
    assert not ours.is_near


def test_near_and_far_from_gaussian():
    """Errors by chance hold with probability 95%; the seed is fixed. Scaled rows keep their directions and are far."""
    X, y, _ = data(n=4000)
    near = sl.inputs.from_data(X, y)
    assert near.is_near_gaussian
    assert near.tests[0].distance < near.tests[0].errors[2]
    assert near.length_ratio == pytest.approx(1.0, abs=0.2)
    scale = np.random.default_rng(1).choice([0.2, 2.0], size=(len(X), 1))
    with pytest.warns(sl.AccuracyWarning, match="far from Gaussian"):
        far = sl.inputs.from_data((X - X.mean(0)) * scale, y)
    assert not far.is_near_gaussian
    assert length_ratio(far.rows.x, far.rows.c) > 3


def test_constant_columns_are_blocks_of_variance_zero():
    X, y, _ = data()
    fit = sl.inputs.from_data(np.pad(X, ((0, 0), (0, 3)), constant_values=1.0), y, blocks=4)
    assert fit.inputs.variance[0, -1] == 0
    assert fit.gram.ravel()[-1] == 0
    assert "3 columns are constant" in repr(fit)
    assert "There are" not in repr(fit)
    assert "There are 20 rows" in repr(sl.inputs.from_data(X[:20], blocks=2))


def test_merged_eigenvalues_keep_outliers_and_room():
    values = np.concatenate([[50.0], np.linspace(1.2, 0.8, 20), [0.01] * 9])
    assert merge_eigenvalues(values, 3, 1) == (1, 20, 9)
    assert min(merge_eigenvalues(values, 3, 4)) >= 4
    assert sum(merge_eigenvalues(values, 30, 1)) == 30


X2 = np.arange(12.0).reshape(6, 2) ** 2
SIGNS = sl.inputs.sampler(lambda key, d: jax.random.rademacher(key, (d,), float))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sl.inputs.from_data([[1.0, np.nan], [0.0, 1.0]]), "X must"),
        (lambda: sl.inputs.from_data([1.0, 2.0]), "X must"),
        (lambda: sl.inputs.from_data([[1.0, 2.0]]), "two rows or more"),
        (lambda: sl.inputs.from_data(np.ones((5, 2))), "all columns of X are constant"),
        (lambda: sl.inputs.from_data(X2, y=[1.0, 2.0]), "one entry for each of the 6 rows"),
        (lambda: sl.inputs.from_data(X2, labels=[1, 2]), "one entry for each of the 6 rows"),
        (lambda: sl.inputs.from_data(X2, y=np.ones(6)), "y is constant"),
        (lambda: sl.inputs.from_data(X2, labels=["a"] * 6), "single class, 'a'"),
        (lambda: sl.inputs.from_data([[0.0, 0.0], [1.0, 1.0]], labels=[0, 1]), "all rows of a class are equal"),
        (lambda: sl.inputs.from_data(X2, blocks=0), "blocks must be"),
        (lambda: sl.inputs.Rows(X2, order="sorted"), "order must be one of random, given"),
        (lambda: sl.simulate(problem(sl.inputs.Rows(X2)), sl.SGD(5), sl.RandomInit(5), t_max=1.0), "Use d = 2"),
        (lambda: sl.inputs.sampler(lambda key, d: jax.random.uniform(key, (d,))), "must have mean zero"),
        (lambda: sl.inputs.sampler(lambda key, d: 2 * jax.random.normal(key, (d,))), "Give variance=3.99"),
        (lambda: sl.inputs.sampler(lambda key, d: jax.random.normal(key, (d + 1,))), "shape"),
        (lambda: sl.inputs.sampler(lambda key, d: jax.random.normal(key) * jax.numpy.ones(d)), "coordinates .* are correlated"),
        (
            lambda: sl.simulate(problem(SIGNS).with_algorithm(sl.Adam(0.1)), sl.SGD(20), sl.RandomInit(20), t_max=1.0),
            "coordinates separately",
        ),
    ],
)
def test_what_cannot_be_described_is_refused_in_a_sentence(make, words):
    with pytest.raises(sl.BadInput, match=words):
        make()


def test_files_have_a_fingerprint_of_the_rows():
    from sgdlimits.run.record import from_json, to_json

    rows = sl.inputs.Rows(data()[0], blocks=2)
    text = to_json(problem(rows))
    assert len(text) < 2000
    assert "600 rows of 12 columns" in text
    assert rows == sl.inputs.Rows(data()[0], blocks=2)
    assert rows != sl.inputs.Rows(data(1)[0], blocks=2)
    with pytest.raises(sl.BadInput, match="files do not hold the rows"):
        from_json(text)


def test_sampler_gives_signs():
    x, z, c = SIGNS.draw_vectors(Stream.from_seed(0, np.arange(3)), _sizes(), 8, None, None)
    assert x.shape == (1, 2, 3, 8)
    assert set(np.unique(x)) == {-1.0, 1.0}
    assert len(np.unique(np.asarray(x).reshape(6, 8), axis=0)) == 6
    assert z.shape == c.shape == (1, 2, 3)


def _sizes():
    from sgdlimits.inputs.base import StepDimensions

    return StepDimensions(2, 2, 1, 1, 0)
