"""Schedules in the place of numbers, at every level."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy

import sgdlimits as sl
from sgdlimits.level.condition import Condition
from sgdlimits.model.target import Readout
from sgdlimits.part import at_start, has_schedules
from sgdlimits.run.record import from_json, to_json
from sgdlimits.schedule import Time, knots_of

LR, NOISE = sl.Steps([1.0], [0.4, 0.1]), sl.Steps([0.503, 1.5], [0.2, 1.0, 0.05])
D, RUNS, T = 200, 4000, 2.0


class Turning(Readout):
    """A label whose factor is a number or a schedule."""

    factor: Any
    smooth: ClassVar[bool] = True

    def __call__(self, fixed, c=0):
        return self.factor * fixed[0]


class Slope(sl.Schedule):
    """A user's own schedule."""

    begin: float
    speed: float

    def __call__(self, t):
        return jnp.asarray(self.begin + self.speed * t)


LABEL = Slope(1.0, 0.5)


def linear(lr=LR, noise=NOISE, label=LABEL, ridge=0.0):
    """A linear unit that learns c(t) times a direction: its moments are closed by hand."""
    return sl.ProjectionProblem(
        target=sl.Target(Turning(label), 1, noise=noise),
        network=sl.TwoLayer(1, "linear"),
        loss=sl.SquaredLoss(),
        algorithm=sl.OnePassSGD(lr, ridge=ridge),
        expectation=sl.GaussHermite(8),
    )


def value(schedule, t):
    return float(schedule(t)) if isinstance(schedule, sl.Schedule) else schedule


def by_hand(times, lr=LR, noise=NOISE, label=LABEL, corrector=1.0):
    """(M, Q) of the limit, by an integrator that stops at each knot."""

    def slope(t, y, side):
        M, Q = y
        gamma, c, Delta = (value(each, t if side is None else min(t, side)) for each in (lr, label, noise))
        return [gamma * (c - M), -2 * gamma * (Q - c * M) + corrector * gamma**2 * (Q - 2 * c * M + c**2 + Delta)]

    found, y, begin = [], np.array([0.2, 1.0]), 0.0
    knots = [k for each in (lr, noise) if isinstance(each, sl.Steps) for k in each.times.tolist()]
    for end in sorted({*knots, *times} - {0.0}):
        y = scipy.integrate.solve_ivp(slope, (begin, end), y, args=(end - 1e-9,), rtol=1e-12, atol=1e-13).y[:, -1]
        begin = end
        found += [y] if end in times else []
    return np.array([[0.2, 1.0], *found])


def risk_by_hand(t, M, Q):
    c = value(LABEL, t)
    return (Q - 2 * c * M + c**2 + value(NOISE, t)) / 2


START = sl.Overlaps([1.0], [[0.2]], [[1.0]])
SAVED = [0.0, 0.5, 1.0, 1.25, 2.0]


def follow(level, runs=1, **more):
    return sl.simulate(linear(), level, START, t_max=T, save=SAVED, runs=runs, seed=3, progress=False, **more)


def test_ode_is_the_integral_by_hand_through_knots():
    data, expected = follow(sl.ODE()), by_hand(SAVED)
    found = np.stack([data.M.values[0, :, 0, 0], data.Q.values[0, :, 0, 0]], axis=1)
    np.testing.assert_allclose(found, expected, atol=2e-8)
    np.testing.assert_allclose(
        data.risk.values[0], [risk_by_hand(*each) for each in zip(SAVED, *expected.T, strict=True)], atol=1e-7
    )


def test_mean_field_is_the_integral_by_hand():
    data = sl.simulate(linear(), sl.MeanField(), START, t_max=T, save=SAVED, progress=False)
    M = by_hand(SAVED)[:, 0]
    np.testing.assert_allclose(data.M.values[0, :, 0, 0], M, atol=2e-8)
    # units are independent outside the fixed direction, so that their mean is M times its field
    np.testing.assert_allclose(
        data.risk.values[0], [risk_by_hand(t, m, m**2) for t, m in zip(SAVED, M, strict=True)], atol=1e-7
    )


@pytest.mark.parametrize("level", [sl.Chain(D), sl.SGD(D)], ids=["chain", "sgd"])
def test_each_step_has_the_numbers_of_its_time(level):
    """The mean over runs obeys, exactly at finite d, the recursion of the moments by hand."""
    data = follow(level, runs=RUNS if level.name == "chain" else RUNS // 4)
    M, Q, means = 0.2, 1.0, [(0.2, 1.0)]
    for n in range(int(T * D)):
        gamma, c, Delta = (value(each, n / D) for each in (LR, LABEL, NOISE))
        excess = Q - 2 * c * M + c**2
        M, Q = (
            M + gamma / D * (c - M),
            Q - 2 * gamma / D * (Q - c * M) + (gamma / D) ** 2 * ((D + 2) * excess + D * Delta),
        )
        means += [(M, Q)] if (n + 1) / D in SAVED else []
    for name, expected in zip("MQ", np.array(means).T, strict=True):
        found = data[name].values[:, :, 0, 0]
        error = found.std(0) / np.sqrt(len(found)) + 1e-12
        assert (np.abs(found.mean(0) - expected) < 4.5 * error).all()
    found, t = data.risk.values, data.t.values
    np.testing.assert_allclose(found, risk_by_hand_of(data, t), rtol=1e-6)


def risk_by_hand_of(data, t):
    return np.stack([risk_by_hand(at, data.M.values[:, i, 0, 0], data.Q.values[:, i, 0, 0]) for i, at in enumerate(t)], axis=1)


def test_diffusion_has_the_mean_of_the_limit():
    data, expected = follow(sl.SDE(D, dt=0.01), runs=RUNS // 4), by_hand(SAVED)
    np.testing.assert_allclose(data.risk.values, risk_by_hand_of(data, data.t.values), rtol=1e-6)
    for name, mean in zip("MQ", expected.T, strict=True):
        found = data[name].values[:, :, 0, 0]
        assert (np.abs(found.mean(0) - mean) < 4.5 * found.std(0) / np.sqrt(len(found)) + 3e-3).all()


@pytest.mark.full
def test_flow_steps_at_knots_and_has_derivatives_by_values_and_knots():
    def end(at):
        rate = sl.Steps(jnp.stack([at[0]]), jnp.stack([at[1], 0.1]))
        return sl.flow(linear(lr=rate), START, T, rtol=1e-12).M[0, 0]

    at, step = jnp.array([1.0, 0.4]), 1e-4
    assert float(end(at)) == pytest.approx(by_hand([T])[-1, 0], abs=1e-7)
    difference = [(float(end(at + step * e)) - float(end(at - step * e))) / (2 * step) for e in jnp.eye(2)]
    np.testing.assert_allclose(jax.grad(end)(at), difference, rtol=1e-6)


@pytest.mark.parametrize("level", [sl.Chain(60), sl.SGD(60), sl.SDE(60), sl.ODE()], ids=lambda level: level.name)
def test_a_schedule_that_is_constant_is_the_number(level):
    """A diffusion ends a step at each knot, so that its paths are those of the number without knots only."""
    rate = sl.Steps([], [0.5]) if level.name == "sde" else sl.Steps([0.7], [0.5, 0.5])
    problems = [
        sl.presets.committee(2, 1, "erf", lr=lr, noise=noise) for lr, noise in ((0.5, 0.1), (rate, sl.Steps([], [0.1])))
    ]
    of = lambda problem: sl.simulate(problem, level, sl.RandomInit(60), t_max=1.5, save=4, runs=3, progress=False)
    one, other = map(of, problems)
    for name in ("M", "Q", "risk"):
        if level.name in ("chain", "sgd"):
            np.testing.assert_array_equal(one[name], other[name])
        else:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kernel", ["xla", "lanes"])
def test_a_step_falls_on_the_right_sample(kernel):
    """The rate changes by a factor of 10^6 at step n: all moves before it are large, all after it small."""
    d, n = 30, 9
    problem = linear(lr=sl.Steps([n / d], [1.0, 1e-6]), noise=1.0, label=1.0)
    save = np.arange(20) / d
    data = sl.simulate(problem, sl.Chain(d), START, t_max=19 / d, save=save, runs=2, kernel=kernel, progress=False)
    moved = np.abs(np.diff(data.M.values[:, :, 0, 0], axis=1))
    assert (moved[:, :n] > 1e-5).all()
    assert (moved[:, n:] < 1e-5).all()


class Below(Condition):
    """The risk is below a number."""

    level: float

    def margin(self, problem, stats, memory):
        return self.level - problem.risk(stats)


@pytest.mark.parametrize("until", [Below(1.0), sl.exits(0.9)], ids=["own", "exits"])
@pytest.mark.parametrize("level", [sl.Chain(50), sl.SGD(50), sl.SDE(50, dt=0.01), sl.ODE()], ids=lambda level: level.name)
def test_conditions_are_asked_of_the_problem_at_their_time(level, until):
    """The weights hardly move; the risk falls at a knot by the noise that goes there, and ends the runs."""
    problem = linear(lr=1e-6, noise=sl.Steps([0.5], [3.0, 0.0]), label=1.0)
    data = sl.simulate(problem, level, START, t_max=1.0, until=until, runs=2, progress=False)
    assert (data.status == "stopped").all()
    np.testing.assert_allclose(data.t_end, 0.5, atol=0.0101)
    np.testing.assert_allclose(data.risk[:, -1], 0.8, atol=1e-3)


@pytest.mark.parametrize("level", [sl.Chain(40), sl.SGD(40), sl.SDE(40, dt=0.01)], ids=lambda level: level.name)
def test_weights_of_classes_follow_their_schedule(level):
    """Without a change of the weights, inputs are of the first class alone before the knot and of the second one after it."""
    data = sl.mixture([[1.0, 0.0], [0.0, 1.0]], sl.Steps([1.0], [[1.0, 0.0], [0.0, 1.0]]), variance=0.0)
    problem = sl.ProjectionProblem(
        data=data,
        target=sl.Target(sl.ClassLabels([1.0, 1.0]), 2),
        network=sl.TwoLayer(1, "linear"),
        loss=sl.SquaredLoss(),
        algorithm=sl.OnePassSGD(0.5),
    )
    start = sl.Overlaps([1.0], [[0.0, 0.0]], [[1.0]])
    M = sl.simulate(problem, level, start, t_max=2.0, save=[0.0, 1.0, 2.0], progress=False).M.values[0, :, 0]
    assert M[1, 0] > 0.3
    assert abs(M[1, 1]) < 1e-12
    assert M[2, 1] > 0.3
    assert abs(M[2, 0] - M[1, 0]) < 1e-12


def test_schedules_are_parts():
    problem = linear()
    assert has_schedules(problem)
    assert not has_schedules(problem.at(0.3))
    assert problem.at(0.3).at(0.9) == problem.at(0.3)
    assert at_start(problem) == problem.at(0.0)
    plain = linear(0.1, 0.2, 1.0)
    assert plain.at(0.3) is plain
    assert float(problem.at(1.0).algorithm.lr) == 0.1
    assert float(problem.at(0.502).target.noise) == 0.2
    assert knots_of(problem).round(9).tolist() == [0.503, 1.0, 1.5]
    stats = START
    assert float(problem.drift(stats).M[0, 0]) == pytest.approx(float(problem.drift(stats, 0.0).M[0, 0]))
    assert float(problem.rate) == 1.0
    assert float(problem.floor) == pytest.approx(0.1)
    noisy = sl.presets.phase_retrieval(lr=LR, noise=NOISE)
    assert repr(noisy).startswith("phase_retrieval: width=1, lr=Steps(times=[1], values=[0.4, 0.1]), noise=Steps(")
    assert noisy.replace(lr=0.1, noise=0.0) == sl.presets.phase_retrieval(lr=0.1)
    assert from_json(to_json(noisy)) == noisy
    assert hash(noisy) == hash(sl.presets.phase_retrieval(lr=LR, noise=NOISE))


def test_arithmetic_of_schedules():
    schedule = 2.0 * LR + np.array(1.0) - 1 / LR
    assert float(schedule(1.0)) == pytest.approx(0.2 + 1 - 10)
    assert float((-(LR**2))(0.0)) == pytest.approx(-0.16)
    assert schedule.knots.round(9).tolist() == [1.0]
    assert float((Time() / 4)(3.0)) == 0.75
    assert sl.Steps([1.0], [[1.0, 2.0], [3.0, 4.0]]).shape == (2,)


def test_momentum_with_a_schedule_has_the_limit_at_its_rate():
    algorithm = sl.HeavyBall(LR, 0.5, lr_second=LR)
    problem = sl.presets.committee(2, 1, algorithm=algorithm)
    plain = sl.presets.committee(2, 1, algorithm=sl.OnePassSGD(0.2, lr_second=0.2))
    stats = sl.FixedInit(0.3).one(plain)
    for one, other in zip(jax.tree.leaves(problem.drift(stats, 1.5)), jax.tree.leaves(plain.drift(stats)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sl.Steps([1.0], [0.1]), "one value more than times"),
        (lambda: sl.Steps([2.0, 1.0], [0.1, 0.2, 0.3]), "must be above 0 and increase"),
        (lambda: sl.Steps(1.0, [0.1]), "a row of times"),
        (lambda: sl.Steps(["a"], [0.1, 0.2]), "times must be real numbers"),
        (lambda: sl.Steps([1.0], [0.1, float("nan")]), "values must be finite; got nan"),
        (
            lambda: sl.presets.phase_retrieval(lr=sl.Steps([1.0], [0.1, -0.1])),
            "lr must be a finite number of at least 0; got -0.1",
        ),
        (lambda: sl.presets.phase_retrieval(noise=sl.Steps([1.0], [[0.1], [0.2]])), "noise must be one number"),
        (lambda: sl.presets.phase_retrieval(width=sl.Steps([1.0], [1.0, 2.0])), "width cannot change with time"),
        (lambda: sl.mixture([[1.0], [0.0]], sl.Steps([1.0], [[0.5, 0.5], [0.5, 0.6]])), "sum to 1; got .0.5, 0.6."),
        (lambda: sl.Chain(d=LR), "d cannot change with time"),
    ],
)
def test_schedules_that_leave_their_domain_are_refused(make, words):
    with pytest.raises(sl.BadInput, match=words):
        make()


class Tilted(eqx.Module):
    """A tree that is no part."""

    lr: Any


def test_knots_are_found_in_any_tree():
    assert knots_of([Tilted(LR), {"a": NOISE}, 3.0]).size == 3
