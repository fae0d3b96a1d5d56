"""Numbers that change with time, tasks, rotating teachers and dropout: levels against weights in R^d, written out in NumPy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.model.tasks import Rotation

FEW = sl.Sobol(3, 2)
RUNS, D, STEPS = 3000, 6, (1, 8, 16)
LR, NOISE, RIDGE = sl.Steps([7 / D], [2.0, 0.7]), sl.Linear([0.0, 2.0], [0.0, 0.5]), sl.Steps([1.0], [0.0, 1.0])
WEIGHTS = sl.Steps([7 / D], [[0.8, 0.2], [0.0, 1.0]])
SPEED, SIMILARITY, RATE = 0.8, 0.6, 0.4
M, Q, A = np.array([[0.3, 0.1], [-0.2, 0.4]]), np.array([[1.0, 0.1], [0.1, 1.0]]), np.array([[1.0, 0.4], [0.6, -0.5]])


def turning(fixed, t):
    return jnp.tanh(2 * (jnp.cos(SPEED * t) * fixed[0] + jnp.sin(SPEED * t) * fixed[1]))


def steep(fixed):
    return jnp.tanh(2 * fixed[0])


@dataclass(frozen=True)
class Case:
    """What changes: the algorithm, numbers, the teacher (at rest, turning, one for each task), heads and dropout."""

    rule: Any = field(default_factory=lambda: sl.OnePassSGD(LR, lr_second=LR, ridge=RIDGE))
    teacher: str = "rest"
    heads: int = 1
    dropout: Any = None
    noise: Any = NOISE

    def problem(self, nodes=FEW):
        tanh = lambda: sl.CommitteeReadout(lambda x: jnp.tanh(2 * x), [2.0, 0.0])
        turns = np.stack([np.eye(2), rotation(np.arccos(SIMILARITY))])
        readout = {"rest": steep, "turning": turning, "tasks": sl.ClassReadouts([tanh(), tanh()], turns)}[self.teacher]
        data = sl.mixture(np.zeros((2, 2)), WEIGHTS)
        return sl.ProjectionProblem(
            data=type(data)(data.weights) if self.teacher == "tasks" else None,
            target=sl.Target(readout, 2, noise=self.noise),
            network=sl.TwoLayer(2, "tanh", heads=self.heads, dropout=self.dropout),
            loss=sl.SquaredLoss(),
            algorithm=self.rule,
            expectation=nodes,
        )

    @property
    def start(self):
        return sl.Overlaps({"a": A} if self.heads > 1 else A[:, 0], M, Q)


def rotation(angle):
    return np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])


def value(number, t):
    return np.asarray(number(t + 1e-12) if isinstance(number, sl.Schedule) else number, float)


CASES = {
    "rate, noise and ridge": Case(),
    "momentum": Case(sl.HeavyBall(LR, sl.Steps([1.0], [0.7, 0.3]), lr_second=LR, ridge=RIDGE)),
    "Muon": Case(sl.Muon(sl.Steps([7 / D], [0.7, 0.2]), 0.6, lr_second=LR)),
    "turning teacher": Case(teacher="turning"),
    "two tasks": Case(teacher="tasks"),
    "two tasks with heads": Case(teacher="tasks", heads=2),
    "dropout": Case(dropout=RATE),
    "scheduled dropout, momentum": Case(sl.HeavyBall(2.0, 0.6, lr_second=1.0), dropout=sl.Steps([1.0], [0.6, 0.2])),
    "heads, dropout, Muon, turning": Case(sl.Muon(0.5, 0.6, lr_second=1.0), teacher="tasks", heads=2, dropout=RATE),
}


def in_space(case, steps=STEPS, runs=RUNS, seed=0, d=D):
    """Weights in R^d after some numbers of steps of one sample, as (u, a)."""
    rng, rule = np.random.default_rng(seed), case.rule
    u = np.zeros((runs, 2, d))
    u[:, :, :2], u[:, :, 2:4] = M, np.linalg.cholesky(Q - M @ M.T)
    a = np.broadcast_to(A if case.heads > 1 else A[:, :1], (runs, 2, case.heads)).copy()
    v, w, found, each = np.zeros_like(u), np.zeros_like(a), [], np.arange(runs)
    for n in range(max(steps)):
        t = n / d
        lr, second, ridge = (value(number, t) for number in (rule.lr, rule.lr_second, rule.ridge))
        x, z = rng.normal(size=(runs, d)), rng.normal(size=runs)
        c = (rng.random(runs) >= value(WEIGHTS, t)[0]).astype(int) if case.teacher == "tasks" else np.zeros(runs, int)
        angle = {"rest": 0 * c, "turning": SPEED * t + 0 * c, "tasks": np.arccos(SIMILARITY) * c}[case.teacher]
        y = np.tanh(2 * (np.cos(angle) * x[:, 0] + np.sin(angle) * x[:, 1])) + np.sqrt(value(case.noise, t)) * z
        rate = 0.0 if case.dropout is None else value(case.dropout, t)
        kept = (rng.random((runs, 2)) >= rate) / (1 - rate)
        head = c if case.heads > 1 else 0 * c
        own, hidden = a[each, :, head], np.tanh((u * x[:, None]).sum(-1))
        error = (own * kept * hidden).mean(1) - y
        g = (error[:, None] * own * kept * (1 - hidden**2) / 2)[:, :, None] * x[:, None]
        h = np.zeros_like(a)
        h[each, :, head] = error[:, None] * kept * hidden / 2
        if isinstance(rule, sl.HeavyBall):
            beta = value(rule.beta, t)
            v, w = beta * v - lr * (g + ridge * u), beta * w - second * (h + ridge * a)
            u, a = u + v / d, a + w / d
        elif isinstance(rule, sl.Muon):
            v, w = rule.beta * v + g / d, rule.beta * w + h / d
            left, sizes, right = np.linalg.svd(v, full_matrices=False)
            u = u - lr / np.sqrt(d) * (left * (sizes > 1e-9 * sizes[:, :1])[:, None]) @ right
            a = a - second * w
        else:
            u, a = u - lr / d * (g + ridge * u), a - second / d * (h + ridge * a)
        if n + 1 in steps:
            found.append((u, a))
    return found


def both(data, space):
    """Overlaps and second layers of a dataset and of weights in R^d, and random combinations of them.

    Rounded: where a unit is dropped its norm stays exactly, a probability that rounding would spread in different ways.
    """
    rows = []
    for i, (u, a) in enumerate(space):
        G = u @ np.swapaxes(u, 1, 2)
        there = np.concatenate([u[..., :2].reshape(len(u), -1), G[:, [0, 0, 1], [0, 1, 1]], a.reshape(len(a), -1)], 1)
        M, Q, second = (data[name].values[:, i] for name in ("M", "Q", "a"))
        here = np.concatenate([M.reshape(len(M), -1), Q[:, [0, 0, 1], [0, 1, 1]], second.reshape(len(M), -1)], 1)
        rows.append((here, there))
    here, there = (np.concatenate(side, 1).round(9) for side in zip(*rows, strict=True))
    centre, spread = there.mean(0), np.where(there.std(0) > 1e-9, there.std(0), 1.0)
    by = np.random.default_rng(5).normal(size=(here.shape[1], 10))
    left, right = ({"each": side, "mixed": (side - centre) / spread @ by} for side in (here, there))
    return left, right


def run(case, level, seed=1):
    t = np.array(STEPS) / level.d
    return sl.simulate(case.problem(), level, case.start, t_max=t[-1], save=t, runs=RUNS, seed=seed, progress=False)


@pytest.mark.parametrize("level", [sl.Chain(D), sl.SGD(D)], ids=lambda level: level.name)
@pytest.mark.parametrize("name", CASES)
def test_levels_have_the_law_of_weights_in_space(name, level, same_law):
    """Kolmogorov-Smirnov on each overlap at three times, before and after the switches, and on mixtures of them."""
    case = CASES[name]
    same_law(*both(run(case, level), in_space(case, seed=2)))


@pytest.mark.parametrize("name", ["heads, dropout, Muon, turning"])
def test_a_wrong_dropout_is_found_out(name, same_law):
    case = CASES[name]
    wrong = Case(case.rule, case.teacher, case.heads, dropout=0.2)
    with pytest.raises(AssertionError, match="p-values below"):
        same_law(*both(run(case, sl.Chain(D)), in_space(wrong, seed=2)), false_alarm=1e-9)


@pytest.mark.full
@pytest.mark.parametrize("name", ["two tasks with heads", "dropout", "turning teacher"])
def test_sde_and_ode_have_the_mean_of_the_chain(name):
    """At d = 400, within 4.5 standard errors and the error of order 1/d and of quadrature."""
    case, t, d = CASES[name], [0.5, 1.5], 400
    problem = case.problem(nodes=sl.Sobol(10))
    go = lambda level, runs: sl.simulate(problem, level, case.start, t_max=1.5, save=t, runs=runs, seed=3, progress=False)
    chain, sde, ode = go(sl.Chain(d), 400), go(sl.SDE(d, dt=0.04), 120), go(sl.ODE(), 1)
    for name in ("M", "Q", "a"):
        mean = ode[name].values[0]
        for data in (chain, sde):
            found = data[name].values
            assert (np.abs(found.mean(0) - mean) < 4.5 * found.std(0) / np.sqrt(len(found)) + 1e-2).all(), (data.level, name)
        ratio = sde[name].std("run") / np.maximum(chain[name].std("run"), 1e-12)
        assert np.all(np.abs(np.where(chain[name].std("run") > 1e-9, ratio, 1.0) - 1) < 0.35)


STATE = sl.Overlaps(A[:, 0], M, Q)


def mean_over_masks(rate, f):
    """An average over the four masks of two units."""
    weigh = lambda kept: np.prod([1 - rate if k else rate for k in kept])
    masks = [(i, j) for i in (0, 1) for j in (0, 1)]
    return sum(weigh(kept) * f(np.array(kept) / (1 - rate)) for kept in masks)


@pytest.mark.parametrize("expectation", [None, sl.Sobol(13)], ids=["closed", "points"])
def test_drift_with_dropout_is_that_of_masked_second_layers(expectation):
    """Each mask by hand: a plain network whose second layer is multiplied, with closed forms of its own."""
    make = lambda **more: sl.ProjectionProblem(
        target=sl.Target(sl.CommitteeReadout("erf"), 2, noise=0.1),
        network=sl.TwoLayer(2, "erf", **more),
        loss=sl.SquaredLoss(),
        algorithm=sl.OnePassSGD(0.7, lr_second=0.4),
        expectation=expectation if more else None,
    )
    masked, plain = make(dropout=RATE), make()
    at = lambda kept: sl.Overlaps(A[:, 0] * kept, M, Q)
    of = lambda kept: plain.drift(at(kept))
    drift, tolerance = masked.drift(STATE), 1e-12 if expectation is None else 2e-4
    np.testing.assert_allclose(drift.M, mean_over_masks(RATE, lambda kept: of(kept).M), atol=tolerance)
    np.testing.assert_allclose(drift.Q, mean_over_masks(RATE, lambda kept: of(kept).Q), atol=tolerance)
    np.testing.assert_allclose(drift.a, mean_over_masks(RATE, lambda kept: kept * of(kept).a), atol=tolerance)
    np.testing.assert_allclose(masked.risk(STATE), plain.risk(STATE), atol=tolerance)  # without masks
    assert float(masked.floor) == float(plain.floor)


def test_risk_of_masks_is_the_penalty_of_dropout():
    r"""For a linear network E over masks of the loss is the loss plus rate/(1 - rate) sum_j a_j^2 Q_jj / (2 p^2)."""
    problem = sl.ProjectionProblem(
        target=sl.Target(sl.CommitteeReadout("linear"), 2),
        network=sl.TwoLayer(2, "linear", dropout=RATE),
        loss=sl.SquaredLoss(),
        algorithm=sl.OnePassSGD(0.1),
    )
    moments, _ = problem.moments(STATE)
    penalty = RATE / (1 - RATE) * (A[:, 0] ** 2 * np.diag(Q)).sum() / 8
    assert float(moments.loss) == pytest.approx(float(problem.risk(STATE)) + penalty, rel=1e-12)


@pytest.mark.parametrize("level", [sl.Chain(40), sl.SGD(40)], ids=lambda level: level.name)
def test_no_dropout_one_head_and_constant_weights_leave_paths_as_they_are(level):
    """Bit for bit."""
    make = lambda weights=None, **more: sl.ProjectionProblem(
        target=sl.Target(steep, noise=0.1),
        network=sl.TwoLayer(2, "tanh", **more),
        loss=sl.SquaredLoss(),
        algorithm=sl.OnePassSGD(0.5),
        data=None if weights is None else type(sl.inputs.gaussian())(weights),
        expectation=FEW,
    )
    go = lambda problem: sl.simulate(problem, level, sl.RandomInit(40), t_max=1.0, save=3, runs=4, progress=False)
    one = go(make())
    constant = sl.Steps([0.4], [[0.3, 0.7], [0.3, 0.7]])
    for other, same in ((make(dropout=0.0), make()), (make(constant), make([0.3, 0.7]))):
        for name in ("M", "Q"):
            np.testing.assert_array_equal(go(other)[name], one[name] if same == make() else go(same)[name])


# --- tasks -------------------------------------------------------------------------------------------------------------------


def test_risk_is_that_of_the_tasks_by_their_weights():
    data = sl.simulate(
        sl.presets.two_tasks(similarity=0.3, weights=WEIGHTS, noise=0.1), sl.ODE(), CASES["two tasks with heads"].start,
        t_max=2.0, save=9, progress=False,
    )  # fmt: skip
    assert data.task_risk.dims == ("run", "t", "task")
    mixed = (data.task_risk.values * data.weights.values).sum(-1)
    np.testing.assert_allclose(data.risk, mixed, rtol=1e-9)


@pytest.mark.parametrize("similarity", [-1.0, 0.0, 0.4, 1.0])
def test_task_risk_is_that_of_a_committee_on_each_teacher(similarity):
    """Also for teachers that coincide, where their Gram matrix is singular."""
    problem = sl.presets.two_tasks(similarity=similarity, noise=0.2)
    start = CASES["two tasks with heads"].start
    found = problem.observables(start)["task_risk"]
    turn = np.array([[1.0, 0.0], [similarity, np.sqrt(1 - similarity**2)]])
    for c in range(2):
        alone = sl.ProjectionProblem(
            target=sl.Target(sl.CommitteeReadout("erf"), 1, noise=0.2),
            network=sl.TwoLayer(2, "erf", mean=False),
            loss=sl.SquaredLoss(),
            algorithm=sl.OnePassSGD(1.0),
        )
        stats = sl.Overlaps(A[:, c], M @ turn[c][:, None], Q)
        assert float(found[c]) == pytest.approx(float(alone.risk(stats)), rel=1e-10)


def test_drift_is_linear_in_the_weights_of_tasks():
    start = CASES["two tasks with heads"].start
    of = lambda weights: sl.presets.two_tasks(similarity=0.3, weights=weights).drift(start)
    for mixed, one, other in zip(*map(jax.tree.leaves, (of([0.3, 0.7]), of([1.0, 0.0]), of([0.0, 1.0]))), strict=True):
        np.testing.assert_allclose(mixed, 0.3 * one + 0.7 * other, atol=1e-12)


@pytest.mark.full
def test_forgetting_is_largest_at_intermediate_similarity():
    """Maslow's hammer: of a network of two units that learnt one task, the next destroys most at intermediate similarity."""
    end = {}
    for similarity in (0.0, 0.5, 1.0):
        problem = sl.presets.two_tasks(similarity=similarity, weights=sl.Steps([100.0], [[1.0, 0.0], [0.0, 1.0]]))
        data = sl.simulate(problem, sl.ODE(), sl.RandomInit(d=1000), t_max=200, save=21, progress=False)
        end[similarity] = float(sl.forgetting(data)[0, -1])
        assert float(data.task_risk[0, 10, 0]) < 1e-3  # the first task was learnt
        assert float(sl.transfer(data)[0, -1]) > 0.16  # and so is the second
    assert end[0.5] > 0.15, end
    assert max(end[0.0], end[1.0]) < 0.02, end


# --- a teacher that rotates --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("speed", "lr", "noise"), [(0.3, 0.5, 0.1), (1.0, 1.2, 0.0), (0.05, 0.2, 0.4)])
def test_tracking_risk_is_where_the_ode_ends(speed, lr, noise):
    problem = sl.presets.drifting(speed, lr=lr, noise=noise)
    start = sl.Overlaps([1.0], [[0.5, 0.0]], [[1.0]])
    data = sl.simulate(problem, sl.ODE(rtol=1e-9), start, t_max=30 / lr, save=4, progress=False)
    assert float(data.risk[0, -1]) == pytest.approx(sl.tracking_risk(speed, lr, noise), rel=1e-5)


@pytest.mark.parametrize(("speed", "noise"), [(0.3, 0.1), (1.0, 0.0), (0.01, 2.0)])
def test_tracking_lr_has_the_least_risk(speed, noise):
    best = sl.tracking_lr(speed, noise)
    least = sl.tracking_risk(speed, best, noise)
    assert all(least <= sl.tracking_risk(speed, lr, noise) + 1e-12 for lr in np.geomspace(1e-4, 1.999, 500))


def test_rotating_readouts_are_functions_of_the_time():
    one = sl.ClassReadouts([sl.CommitteeReadout("erf", [2.0, 0.0])], Rotation(0.7))
    make = lambda readout: sl.ProjectionProblem(
        target=sl.Target(readout, 2), network=sl.TwoLayer(2, "erf"), loss=sl.SquaredLoss(), algorithm=sl.OnePassSGD(0.5)
    )
    closed = make(one)
    points = make(lambda fixed, t: jax.scipy.special.erf((jnp.cos(0.7 * t) * fixed[0] + jnp.sin(0.7 * t) * fixed[1]) / 2**0.5))
    for t in (0.0, 1.3):
        for left, right in zip(*(jax.tree.leaves(each.drift(STATE, t)) for each in (closed, points)), strict=True):
            np.testing.assert_allclose(left, right, atol=2e-3)
