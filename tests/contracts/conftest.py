"""A contract that takes `problem` and `level` is tried on all pairs; one that takes `problem` alone, on all problems."""

from __future__ import annotations

import pytest
from contracts.matrix import ALL_PAIRS, ALL_PROBLEMS, BY_POINTS, LEVELS, PROBLEMS, square

import sgdlimits as sl


def pytest_generate_tests(metafunc):
    if "level" in metafunc.fixturenames:
        metafunc.parametrize(("named", "kind"), ALL_PAIRS, indirect=True)
    elif "problem" in metafunc.fixturenames:
        metafunc.parametrize("named", ALL_PROBLEMS, indirect=True)


@pytest.fixture
def named(request):
    """The name of the problem."""
    return request.param


@pytest.fixture
def problem(named, request):
    whole = PROBLEMS[named]()
    if named not in BY_POINTS or "level" not in request.fixturenames:
        return whole
    return whole.with_expectation(request.getfixturevalue("kind").expectation or BY_POINTS[named])


@pytest.fixture
def kind(request):
    """What is true of the level."""
    return LEVELS[request.param]


@pytest.fixture
def level(named, problem, kind):
    return kind.make(named, problem)


@pytest.fixture
def go(problem, level, kind):
    """A function that simulates the problem at the level, as all contracts do but for what is given."""
    usual = dict(t_max=kind.end, runs=kind.runs, seed=3, save=4, observe={"square": square}, progress=False)
    return lambda verb=sl.simulate, **changes: verb(problem, level, **{"start": sl.RandomInit(kind.d), **usual, **changes})


@pytest.fixture(scope="module")
def made():
    return {}


@pytest.fixture
def data(request, go, made):
    """The dataset of `go()`, made once for all tests that only look at it."""
    key = request.node.callspec.id
    if key not in made:
        made[key] = go()
    return made[key]
