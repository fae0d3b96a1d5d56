"""Problems and rules that depend on time, at every level."""

from __future__ import annotations

import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

import sgdlimits as sl
from sgdlimits.algorithm import ALGORITHMS
from sgdlimits.algorithm.base import Wrapper
from sgdlimits.algorithm.coordinates import CoordinatewiseAlgorithm
from sgdlimits.algorithm.limit import MAX_WEIGHT_CHANGE, depends_on_time, measure_step_limits
from sgdlimits.kernel.random import Purpose
from sgdlimits.level.chain import chain_process
from sgdlimits.level.condition import Condition
from sgdlimits.level.process import Process
from sgdlimits.problem.base import Problem
from sgdlimits.problem.coordinates import Coordinates
from sgdlimits.problem.directions import Directions, InitialWeights
from sgdlimits.statistics.spike import Spike


class Rising(Problem):
    """An overlap that moves at the speed 1 + t, and a risk of 1 + t wherever it is."""

    t: Float[Array, ""] | float = 0.0
    directions = Directions(1, np.eye(1), InitialWeights())
    rate = 1.0

    def at(self, t):
        return eqx.tree_at(lambda problem: problem.t, self, t)

    def _drift_parts(self, stats):
        return Spike(1.0 + self.t + 0 * stats.m, 0 * stats.r2), Spike(0 * stats.m, 0 * stats.r2)

    def _covariance(self, stats):
        return jnp.zeros((2, 2))

    def _risk(self, stats):
        return 1.0 + self.t

    def observables(self, stats):
        return {"twice": 2 * (1.0 + self.t)}

    @property
    def floor(self):
        return -2.0 - self.t

    @property
    def coordinates(self):
        return RisingCoordinates(self)


class RisingCoordinates(Coordinates):
    """Its statistics, of a direction with these overlaps."""

    def from_overlaps(self, overlaps):
        return Spike(overlaps.M[:, 0, 0], overlaps.Q[:, 0, 0] - overlaps.M[:, 0, 0] ** 2)


class Risen(Process):
    """Its chain, without noise."""

    problem: Rising
    d: Float[Array, ""]
    block: int = eqx.field(static=True, default=16)

    def __init__(self, problem: Rising, d: int) -> None:
        self.problem, self.d, self.block = problem, jnp.asarray(float(d)), 16

    def start(self, stats):
        return stats

    def draw(self, stream):
        return stream.normal(Purpose.STEP, 1)

    def step(self, state, numbers, now):
        return Spike(state.m + (1.0 + self.problem.at(now.t).t) * now.size, state.r2)

    def statistics(self, state):
        return state


chain_process.register(Rising, Risen)


class Above(Condition):
    """The risk is above a level."""

    level: float

    def margin(self, problem, stats, memory):
        return problem.risk(stats) - self.level


LEVELS = {"ode": sl.ODE(), "sde": sl.SDE(d=1000, dt=0.01), "xla": sl.Chain(d=1000), "lanes": sl.Chain(d=1000)}


def go(name, **more):
    kernel = {"kernel": name} if name in ("xla", "lanes") else {}
    return sl.simulate(Rising(), LEVELS[name], sl.FixedInit(0.1), t_max=2.0, save=[0, 1, 2], runs=2, **kernel, **more)


@pytest.mark.parametrize("name", ["ode", "lanes", "sde", "xla"])
def test_risk_and_observables_are_those_of_their_time(name):
    data = go(name)
    np.testing.assert_allclose(data.risk, [[1, 2, 3]] * 2, atol=1e-9)
    np.testing.assert_allclose(data.twice, [[2, 4, 6]] * 2, atol=1e-9)
    np.testing.assert_allclose(data.m, [[0.1, 1.6, 4.1]] * 2, atol=0.01)


@pytest.mark.parametrize("name", ["ode", "lanes", "sde", "xla"])
def test_conditions_are_asked_of_the_problem_at_their_time(name):
    data = go(name, until=Above(2.495))
    assert (data.status == "stopped").all()
    np.testing.assert_allclose(data.t_end, 1.495, atol=0.011)  # a step of the diffusion
    np.testing.assert_allclose(data.risk[:, -1], 1 + data.t_end, atol=1e-9)  # as it ended


def test_methods_take_a_time_or_the_problem_as_it_stands():
    problem, stats = Rising(), Spike(0.1, 0.9)
    assert float(problem.risk(stats)) == 1.0
    assert float(problem.risk(stats, 2.0)) == float(problem.at(2.0).risk(stats)) == 3.0
    assert float(problem.drift(stats, 2.0).m) == float(problem.at(2.0).drift(stats).m) == 3.0
    assert float(sl.flow(problem, stats, 2.0).m) == pytest.approx(4.1)


class Own(sl.Algorithm):
    """A rule with a step of its own."""

    fn: object = eqx.field(static=True)
    batch, sphere, trains_second = 1, False, False

    def step(self, now):
        return {"student": self.fn(now)}


def own(fn):
    """A problem of two units with that rule."""
    return sl.presets.committee(2, 1, algorithm=Own(fn)).with_expectation(sl.Sobol(8, 2))


def test_rule_that_reads_the_time_is_timed_at_every_level():
    problem = own(lambda now: now.student - 0.3 / (1 + now.t) ** 2 * now.gradient())
    ended = lambda level: sl.simulate(problem, level, sl.FixedInit(0.3), t_max=4.0, save=[0, 4]).M.values[0, -1]
    limit = ended(sl.ODE())
    constant = own(lambda now: now.student - 0.3 * now.gradient())
    np.testing.assert_allclose(limit, ended(sl.Chain(d=10**5)), atol=0.02)
    assert np.abs(limit - ended(sl.SDE(d=10**5))).max() < 0.02
    slope = lambda problem, t: np.asarray(problem.drift(sl.FixedInit(0.3).one(problem), t).M)
    assert (slope(constant, 3.0) == slope(constant, 0.0)).all()
    np.testing.assert_allclose(slope(problem, 3.0)[0], slope(problem, 0.0)[0] / 16, rtol=1e-10)


@pytest.mark.parametrize("jump", [lambda now: 0.5 * now.student, lambda now: now.student + now.gradient() * (1 / now.inv_d)])
def test_rule_whose_steps_do_not_vanish_has_no_limit(jump):
    problem = own(jump)
    stats = sl.FixedInit(0.3).one(problem)
    tries = [
        lambda: sl.simulate(problem, sl.ODE(), sl.FixedInit(0.3), t_max=1.0),
        lambda: sl.simulate(problem, sl.SDE(d=100), sl.FixedInit(0.3), t_max=1.0),
        lambda: problem.drift(stats),
        lambda: problem.covariance(stats),
        lambda: sl.flow(problem, stats, 1.0),
        lambda: jax.vmap(problem.drift)(jax.tree.map(lambda leaf: leaf[None], stats)),
    ]
    for attempt in tries:
        with pytest.raises(sl.BadInput, match="Own has no limit as d grows"):
            attempt()
    assert np.isfinite(float(problem.risk(stats)))


def with_expectation(name):
    rule = ALGORITHMS[name]
    base = sl.OnePassSGD(0.5) if issubclass(rule, Wrapper) else 0.5
    needed = {"heavy_ball": {"beta": 0.5}, "nesterov": {"beta": 0.5}, "repeated": {"times": 2}}.get(name, {})
    arguments = list(inspect.signature(rule).parameters.values())[1:]
    more = {each.name: 0.5 for each in arguments if each.default is each.empty} | needed
    return sl.presets.committee(2, 2, "erf").with_algorithm(rule(base, **more))


@pytest.mark.parametrize("name", [name for name, rule in ALGORITHMS.items() if not issubclass(rule, CoordinatewiseAlgorithm)])
def test_rules_of_the_package_say_of_themselves_what_their_steps_do(name):
    """Which is why they are not asked again."""
    problem = with_expectation(name)
    rule = problem.algorithm.limit
    assert all(float(jump) <= MAX_WEIGHT_CHANGE for jump in measure_step_limits(rule, problem.model).values())


def test_time_of_wrapped_rules_is_seen():
    model = own(lambda now: now.student).model
    assert not depends_on_time(sl.Clipped(Own(lambda now: now.student - now.gradient()), 1.0), model)
    assert depends_on_time(sl.Clipped(Own(lambda now: now.student - (1 + now.t) * now.gradient()), 1.0), model)
