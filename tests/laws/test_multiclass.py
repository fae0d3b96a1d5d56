"""Networks with scalars by name and several outputs: classes, learning rates of their own, accuracy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl

WEIGHTS, SPREAD, RIDGE, RATES = (0.5, 0.3, 0.2), 0.5, 0.1, {"a": 0.5, "bias": 0.2}
ANGLES = 2 * np.pi * np.arange(3) / 3
MEANS = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)
D = 400


def three_classes(rule=None) -> sl.ProjectionProblem:
    """Means at 120 degrees in a plane, unequal weights; four tanh units, three outputs and a bias."""
    return sl.ProjectionProblem(
        target=sl.Target(sl.ClassLabels(range(3)), 2),
        network=sl.TwoLayer(4, "tanh", mean=False, outputs=3, bias=True),
        loss=sl.SoftmaxCrossEntropy(),
        algorithm=sl.OnePassSGD(1.0, lr_second=RATES, ridge=RIDGE),
        data=sl.mixture(MEANS, WEIGHTS, SPREAD**2),
        initial=sl.InitialWeights(second=0.0, second_spread=0.5),
        expectation=rule,
    )


def start(problem) -> sl.Overlaps:
    one = sl.RandomInit(D).one(problem, seed=5)
    return sl.Overlaps({**one.a, "bias": np.array([0.3, -0.1, 0.0])}, one.M, one.Q)


def weights(stats, d):
    """Units in R^d with these overlaps, the plane of the means along the first two axes."""
    M, Q = np.asarray(stats.M), np.asarray(stats.Q)
    values, vectors = np.linalg.eigh(Q - M @ M.T)
    u = np.zeros((len(M), d))
    u[:, :2], u[:, 2 : 2 + len(M)] = M, vectors * np.sqrt(values.clip(0))
    return u


def samples(rng, count, d):
    c = rng.choice(3, p=WEIGHTS, size=count)
    x = SPREAD * rng.normal(size=(count, d))
    x[:, :2] += MEANS[c]
    return x, c


def forward(stats, u, x, c):
    """Fields, values of the units, outputs, and the slope of the loss in the outputs, in NumPy."""
    fields = x @ u.T
    outputs = np.tanh(fields) @ np.asarray(stats.a["a"]) + np.asarray(stats.a["bias"])
    chances = np.exp(outputs - outputs.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)
    return fields, np.tanh(fields), outputs, chances - np.eye(3)[c]


def test_drift_is_the_mean_step_in_high_dimension():
    """Steps of SGD written out in NumPy, d times their mean: 40 numbers within 5 standard errors and a bias of order 1/d."""
    problem = three_classes()
    stats, rng, count = start(problem), np.random.default_rng(0), 40_000
    u, a, bias = weights(stats, D), np.asarray(stats.a["a"]), np.asarray(stats.a["bias"])
    x, c = samples(rng, count, D)
    fields, values, _, slope = forward(stats, u, x, c)
    G = (1 - values**2) * (slope @ a.T)
    cross, keep = G[:, :, None] * fields[:, None], 1 - RIDGE / D
    squares = (x**2).sum(1)[:, None, None] * G[:, :, None] * G[:, None] / D**2
    steps = {
        "M": -G[:, :, None] * x[:, None, :2] - RIDGE * u[:, :2],
        "Q": D * ((keep**2 - 1) * u @ u.T + squares) - keep * (cross + cross.swapaxes(1, 2)),
        "a": -RATES["a"] * (values[:, :, None] * slope[:, None] + RIDGE * a),
        "bias": -RATES["bias"] * (slope + RIDGE * bias),
    }
    for name, (_, expected) in problem.coordinates.variables(problem.drift(stats)).items():
        error = steps[name].std(0) / np.sqrt(count)
        assert (np.abs(steps[name].mean(0) - expected) < 5 * error + 2 / D).all(), name


@pytest.mark.parametrize("level", [sl.Chain(D), sl.SDE(D, dt=0.05), sl.SGD(D)], ids=lambda level: level.name)
def test_levels_agree(level):
    """All means within four standard errors, and 2/d of bias, of the ODE: seeds are fixed, and a false alarm is 1 in 200."""
    problem = three_classes(sl.Sobol(9, 4))
    times = dict(t_max=0.5, save=[0.5], progress=False)
    limit = sl.simulate(problem, sl.ODE(), start(problem), **times).isel(run=0)
    data = sl.simulate(problem, level, start(problem), runs=100, seed=7, **times)
    for name in ("a", "bias", "M", "Q", "risk", "accuracy"):
        gap, error = (data[name].mean("run") - limit[name]), data[name].std("run") / np.sqrt(100)
        assert (np.abs(gap) < 4 * error + 2 / D).all(), name


def test_accuracy_is_the_share_of_right_predictions_in_high_dimension():
    """After some learning, at 10^5 fresh inputs in R^d: within five standard errors and the error of the nodes."""
    problem = three_classes(sl.Sobol(10, 4))
    data = sl.simulate(problem, sl.Chain(D), sl.RandomInit(D), t_max=20.0, save=[20.0], progress=False).isel(run=0, t=0)
    stats = sl.Overlaps({name: data[name].values for name in ("a", "bias")}, data.M.values, data.Q.values)
    rng, count, right = np.random.default_rng(1), 100_000, 0
    for _ in range(10):
        x, c = samples(rng, count // 10, D)
        right += (forward(stats, weights(stats, D), x, c)[2].argmax(1) == c).sum()
    share = right / count
    print(f"accuracy {float(data.accuracy):.4f}, in R^d {share:.4f}")
    assert share > 0.75
    assert abs(float(data.accuracy) - share) < 5 * np.sqrt(share * (1 - share) / count) + 2e-3


def test_softmax_of_two_outputs_is_the_logistic_loss():
    """With outputs -f/2 and f/2 all but the second layer moves as under the cross-entropy of f, and it is right as often."""
    v, rule, data = np.array([0.7, -1.2]), sl.Sobol(8, 2), sl.mixture([[1.0], [-1.0], [0.2]], [0.4, 0.4, 0.2], 0.3)
    parts = dict(algorithm=sl.OnePassSGD(0.8, lr_second=0.3), data=data, expectation=rule)
    target = sl.Target(sl.ClassLabels([1, 0, 1]))
    one = sl.ProjectionProblem(target, sl.TwoLayer(2, "tanh"), sl.CrossEntropy(), **parts)
    two = sl.ProjectionProblem(target, sl.TwoLayer(2, "tanh", outputs=2), sl.SoftmaxCrossEntropy(), **parts)
    stats = sl.FixedInit([[0.5], [-0.2]]).one(one)
    single, double = (sl.Overlaps(a, stats.M, stats.Q) for a in (v, {"a": np.stack([-v, v], axis=1) / 2}))
    for left, right in zip(one.drift_parts(single), two.drift_parts(double), strict=True):
        np.testing.assert_allclose(left.M, right.M, atol=1e-12)
        np.testing.assert_allclose(left.Q, right.Q, atol=1e-12)
        np.testing.assert_allclose(np.stack([-left.a, left.a], axis=1), right.a["a"], atol=1e-12)
    assert abs(float(one.risk(single)) - float(two.risk(double))) < 1e-12
    assert abs(float(one.observables(single)["accuracy"]) - float(two.observables(double)["accuracy"])) < 1e-12


def two_layers(fields, scalars):
    return scalars["a"].T @ jnp.tanh(fields) / 2 + scalars["bias"]


def test_a_function_is_the_network_that_it_writes_out():
    shapes = {"a": np.ones((2, 3)), "bias": np.zeros(3)}
    data, target = sl.mixture(MEANS, WEIGHTS, SPREAD**2), sl.Target(sl.ClassLabels(range(3)), 2)
    parts = dict(
        loss=sl.SoftmaxCrossEntropy(), algorithm=sl.OnePassSGD(0.8, lr_second=0.3), data=data, expectation=sl.Sobol(7, 2)
    )
    problems = [
        sl.ProjectionProblem(target, network, **parts)
        for network in (sl.Network(two_layers, 2, shapes), sl.TwoLayer(2, "tanh", outputs=3, bias=True))
    ]
    rng, one = np.random.default_rng(0), sl.FixedInit(0.3).one(problems[0])
    stats = sl.Overlaps({name: rng.normal(size=value.shape) for name, value in shapes.items()}, one.M, one.Q)
    assert problems[0].network.axes == problems[1].network.axes
    for left, right in zip(*(jax.tree.leaves(problem.drift(stats)) for problem in problems), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(*(problem.covariance(stats) for problem in problems), rtol=1e-8, atol=1e-8)


def thresholds(fields, scalars):
    return scalars["scale"] * jnp.tanh(fields - scalars["threshold"]).mean()


def thresholded(**rates) -> sl.ProjectionProblem:
    return sl.ProjectionProblem(
        target=sl.Target(sl.CommitteeReadout("tanh"), noise=0.01),
        network=sl.Network(thresholds, 2, {"scale": 1.0, "threshold": [0.0, 0.5]}),
        loss=sl.SquaredLoss(),
        algorithm=sl.HeavyBall(0.5, friction=3.0, **rates),
        expectation=sl.Sobol(7, 2),
    )


@pytest.mark.parametrize("level", [sl.Chain(64), sl.SGD(64), sl.SDE(64, dt=0.1), sl.ODE()], ids=lambda level: level.name)
def test_scalars_without_a_rate_stay(level, tmp_path):
    """They are no part of the vector, and have no velocity; files bring them back."""
    problem = thresholded(lr_second={"scale": 0.3, "threshold": None})
    data = sl.simulate(problem, level, sl.FixedInit(0.3), t_max=1.0, save=3, runs=2, progress=False)
    assert np.ptp(data.threshold.values, axis=1).max() == 0
    assert np.ptp(data.scale.values, axis=1).min() > 0
    assert data.threshold.dims == ("run", "t", "student")
    assert {"velocity_scale"} == {name for name in data if name in ("velocity_scale", "velocity_threshold")}
    stats = sl.FixedInit(0.3).one(problem)
    assert problem.coordinates.names(stats)[-2:] == ("scale", "velocity scale")
    back = problem.from_vector(problem.vector(stats), stats)
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (stats, back)), strict=True))
    assert sl.load(sl.save(data, tmp_path / "data.nc")).identical(data)
    assert sl.rerun(data).identical(data)


def test_each_scalar_has_its_rate():
    slow, fast = (thresholded(lr_second={"scale": 0.1, "threshold": rate}) for rate in (0.2, 0.6))
    stats = sl.FixedInit(0.3).one(slow)
    left, right = slow.drift(stats).kept["velocity"], fast.drift(stats).kept["velocity"]
    np.testing.assert_allclose(left["scale"], right["scale"], rtol=1e-12)
    np.testing.assert_allclose(3 * left["threshold"], right["threshold"], rtol=1e-12)


def two_classes() -> sl.ProjectionProblem:
    return sl.ProjectionProblem(
        target=sl.Target(sl.ClassLabels(range(2))),
        network=sl.TwoLayer(2, "tanh", mean=False, outputs=2),
        loss=sl.SoftmaxCrossEntropy(),
        algorithm=sl.OnePassSGD(1.0, lr_second=1.0, ridge=0.1),
        data=sl.mixture([[1.0], [-1.0]], variance=0.1),
        expectation=sl.Sobol(6, 2),
    )


@pytest.mark.full
def test_fixed_points_of_two_outputs():
    """The origin is unstable, and the ridge makes the two outputs opposite to each other."""
    found = sl.fixed_points(two_classes(), count=8, progress=False)
    assert found.stable
    for each in found:
        a = np.asarray(each.point.a["a"])
        np.testing.assert_allclose(a[:, 0], -a[:, 1], atol=1e-6)
        assert (np.abs(a).max() < 1e-6) <= (each.stability == "unstable")
    assert "a = [[" in repr(found)


def test_ties_are_drawn_by_lot():
    assert float(sl.SoftmaxCrossEntropy().probability_correct(jnp.array([1.0, 0.0, 1.0]), jnp.array(2.0))) == 0.5
    assert float(sl.CrossEntropy().probability_correct(jnp.array(0.0), jnp.array(1.0))) == 0.5


def test_accuracy_of_inputs_on_their_means_is_exact():
    """One unit that is positive on the first mean alone, at which the label is 1; the other is a tie."""
    problem = sl.presets.binary_mixture(snr=float("inf"), width=1)
    stats = sl.Overlaps([1.0], [[0.5]], [[1.0]])
    assert float(problem.observables(stats)["accuracy"]) == 0.75


CASES = {
    "lr_second has rates for bias": lambda: dict(algorithm=sl.OnePassSGD(1.0, lr_second={"bias": 1.0})),
    "lr_second must be a learning rate above 0": lambda: dict(algorithm=sl.OnePassSGD(1.0, lr_second={"a": -1.0})),
    "an output for each class": lambda: dict(network=sl.TwoLayer(2, "tanh")),
    "labels must be 3 integers": lambda: dict(network=sl.TwoLayer(2, "tanh", outputs=2)),
    "needs labels without noise": lambda: dict(target=sl.Target(sl.ClassLabels(range(3)), 2, noise=0.1)),
    "the loss, SoftmaxCrossEntropy.. if labels are classes, must return one number": lambda: dict(loss=sl.SquaredLoss()),
    "Squares needs": lambda: dict(expectation=sl.Squares()),
}


@pytest.mark.parametrize("sentence", CASES)
def test_parts_that_do_not_fit_are_refused(sentence):
    usual = dict(target=sl.Target(sl.ClassLabels(range(3)), 2), network=sl.TwoLayer(2, "tanh", outputs=3))
    usual |= dict(loss=sl.SoftmaxCrossEntropy(), algorithm=sl.OnePassSGD(1.0), data=sl.mixture(MEANS))
    with pytest.raises(sl.BadInput, match=sentence):
        sl.ProjectionProblem(**{**usual, **CASES[sentence]()})


def test_statistics_that_do_not_fit_are_refused():
    problem, one = two_classes(), sl.FixedInit(0.3).one(two_classes())
    for a, sentence in ((np.ones(2), "got one array"), ({"a": np.ones(2)}, "must have shape")):
        with pytest.raises(sl.BadInput, match=sentence):
            sl.simulate(problem, sl.Chain(50), sl.Overlaps(a, one.M, one.Q), t_max=1.0)
    with pytest.raises(sl.BadInput, match="the network's scalars are a"):
        sl.FixedInit(0.3, second={"b": 1.0}).one(problem)
    with pytest.raises(sl.BadInput, match="one output, no bias and no dropout"):
        sl.simulate(problem, sl.MeanField(), sl.FixedInit(0.3), t_max=1.0)
