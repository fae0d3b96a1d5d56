"""Problems with schedules: their domains, datasets and equations, and the analyses that need a time."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.problem.over_time import check_schedules, evaluate_at_time_if_needed, find_schedules

START = sl.Overlaps([1.0], [[0.5]], [[1.0]])
NOISE = sl.Steps([1.0], [0.1, 0.2])


def halving(t):
    return 0.2 / (1 + t)


def of_time(level=None, **numbers):
    problem = sl.presets.committee(2, 1, "erf", **numbers)
    return sl.simulate(problem, level or sl.Chain(50), sl.RandomInit(50), t_max=2.0, save=4, runs=2, progress=False)


def classes(weights):
    return sl.presets.gaussian_mixture([[1.0, 0.0], [0.0, 1.0]], labels=[1.0, 0.0], weights=weights)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"lr": lambda t: 1.5 - t}, "at t = 1.502 the schedule of lr leaves its domain: lr must be .* at least 0; got -0.00"),
        ({"noise": lambda t: jnp.log(2 - t)}, "at t = 1.002 the schedule of noise leaves its domain"),
        ({"lr": lambda t: 0.1 / (1.5 - t)}, "at t = 1.5 the schedule of lr leaves its domain: .* got inf"),
        ({"algorithm": sl.HeavyBall(0.1, beta=lambda t: 0.5 + 0.4 * t)}, "the schedule of beta leaves its domain: .* below 1"),
        ({"algorithm": sl.Clipped(sl.OnePassSGD(0.1), lambda t: 1.5 - t)}, "at t = 1.5 the schedule of norm leaves its domain"),
    ],
)
@pytest.mark.parametrize("level", [sl.Chain(50), sl.ODE()], ids=["chain", "ode"])
def test_a_schedule_that_leaves_its_domain_is_refused_before_anything_runs(level, numbers, words):
    with pytest.raises(sl.BadInput, match=words):
        of_time(level, **numbers)


def test_a_short_step_outside_the_domain_is_refused_at_once():
    """It lasts 1e-6, between two of the times that are checked for a function."""
    late = sl.Steps([0.9, 0.900001], [1.0, 2.0, 1.0])
    with pytest.raises(sl.BadInput, match=r"lr must be a finite number of at least 0; got -0\.5"):
        sl.presets.committee(2, 1, lr=1.5 - late)


def test_weights_sum_to_one_at_all_times():
    good = classes(lambda t: jnp.stack([1 - t / 4, t / 4]))
    data = sl.simulate(good, sl.Chain(50), sl.RandomInit(50), t_max=2.0, save=3, progress=False)
    np.testing.assert_allclose(data.weights, [[1.0, 0.0], [0.75, 0.25], [0.5, 0.5]])
    with pytest.raises(sl.BadInput, match=r"at t = 1.201 the schedule of weights .* sum to 1; got \[1.1, 0.0\]"):
        check_schedules(classes(lambda t: jnp.stack([1 + jnp.where(t > 1.2, 0.1, 0.0), 0.0 * t])), 2.0)


def test_flow_refuses_a_schedule_that_leaves_its_domain():
    with pytest.raises(sl.BadInput, match="the schedule of lr leaves its domain"):
        sl.flow(sl.presets.phase_retrieval(lr=lambda t: 1.0 - t), START, 2.0)


def test_names_tell_numbers_apart():
    algorithm = sl.Clipped(sl.HeavyBall(0.1, beta=sl.Cosine(0.9, 0.5, 1.0), lr_second=halving), sl.Warmup(1.0, 0.5) + 0.1)
    problem = sl.presets.committee(2, 1, noise=NOISE, algorithm=algorithm)
    assert sorted(find_schedules(problem)) == ["beta", "lr_second", "noise", "norm"]
    assert list(find_schedules(sl.presets.binary_mixture(snr=sl.Steps([1.0], [4.0, 9.0])))) == ["sigma"]
    assert find_schedules(sl.presets.committee(2, 1, algorithm=sl.Averaged(sl.OnePassSGD(0.1)))) == {}


@pytest.mark.parametrize("level", [sl.Chain(50), sl.ODE()], ids=["chain", "ode"])
def test_datasets_show_schedules_over_time_and_files_keep_them(level, tmp_path):
    data = of_time(level, lr=halving, noise=NOISE)
    np.testing.assert_allclose(data.lr, 0.2 / (1 + data.t))
    np.testing.assert_allclose(data.noise, np.where(data.t < 1, 0.1, 0.2))
    assert data.lr.dims == ("t",)
    sl.save(data, tmp_path / "runs.nc")
    again = sl.load(tmp_path / "runs.nc")
    np.testing.assert_array_equal(again.lr, data.lr)
    assert sl.problem_of(again) == sl.presets.committee(2, 1, "erf", lr=halving, noise=NOISE)
    sl.check(again)


def test_pieces_and_resumed_runs_have_schedules_at_their_times():
    problem, start = sl.presets.committee(2, 1, lr=halving), sl.RandomInit(50)
    first = sl.simulate(problem, sl.Chain(50), start, t_max=1.0, save=3, runs=2, progress=False)
    whole = sl.simulate(problem, sl.Chain(50), start, t_max=2.0, save=5, runs=2, progress=False, resume=first)
    np.testing.assert_allclose(whole.lr, 0.2 / (1 + whole.t))
    pieces = list(sl.stream(problem, sl.Chain(50), start, t_max=2.0, save=5, runs=70, batch=64))
    np.testing.assert_allclose(sl.join(pieces).lr, 0.2 / (1 + sl.join(pieces).t))


def test_an_observable_cannot_have_the_name_of_a_schedule():
    problem, observe = sl.presets.committee(2, 1, lr=halving), {"lr": lambda stats: stats.M.sum()}
    with pytest.raises(sl.BadInput, match="lr"):
        sl.simulate(problem, sl.Chain(50), sl.RandomInit(50), t_max=1, observe=observe)


ASKED = {
    "fixed_points": lambda problem, **t: sl.fixed_points(problem, count=16, progress=False, **t)[0].risk,
    "linearise": lambda problem, **t: sl.linearise(problem, START, **t).matrix,
    "risk": lambda problem, **t: sl.landscape.risk(problem, START, **t),
    "gradient": lambda problem, **t: sl.landscape.gradient(problem, START, **t),
    "hessian": lambda problem, **t: sl.landscape.hessian(problem, START, **t).span,
    "hessian_spectrum": lambda problem, **t: sl.hessian_spectrum(problem, START, 20, **t).eigenvalues,
    "local_limit": lambda problem, **t: sl.local_limit(problem, sl.Overlaps([1.0], [[0.0]], [[1.0]]), **t).noise_matrix,
}


@pytest.mark.parametrize("name", ASKED)
def test_analyses_ask_for_a_time(name):
    make = lambda noise: sl.presets.phase_retrieval(lr=0.05, noise=noise)
    with pytest.raises(sl.BadInput, match=r"noise changes with time, as Steps\(.* Give t, in samples per dimension"):
        ASKED[name](make(NOISE))
    np.testing.assert_allclose(ASKED[name](make(NOISE), t=2.0), ASKED[name](make(0.2)), rtol=1e-9)


def test_the_local_level_asks_for_a_problem_at_a_time():
    level = sl.Local(sl.Overlaps([1.0], [[0.0]], [[1.0]]), 50)
    with pytest.raises(sl.BadInput, match=r"Give problem.at\(t\)"):
        sl.simulate(sl.presets.phase_retrieval(noise=NOISE), level, sl.RandomInit(50), t_max=1)


def test_a_problem_without_schedules_is_itself_at_any_time():
    problem = sl.presets.phase_retrieval()
    assert evaluate_at_time_if_needed(problem, None) is problem
    with pytest.raises(sl.BadInput, match="t must be"):
        evaluate_at_time_if_needed(problem, -1.0)


COSINE = sl.presets.committee(2, 1, lr=sl.Cosine(0.2, 0.0, 5.0))
MOVING = classes(sl.Linear([0.0, 5.0], [[1.0, 0.0], [0.0, 1.0]]))


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (sl.presets.phase_retrieval(lr=halving, noise=NOISE), r"\text{lr } \gamma &= \operatorname{halving}(t) \\"),
        (sl.presets.phase_retrieval(noise=NOISE), r"\Delta &= \begin{cases} 0.1 & t < 1 \\ 0.2 & t \ge 1 \end{cases}"),
        (COSINE, r"\gamma &= \tfrac12 \cdot 0.2 \left(1 + \cos(\pi \min(1, t / 5))"),
        (sl.presets.committee(2, 1, lr=sl.Power(0.2, 0.5, 5.0)), r"\gamma &= 0.2 \left(1 + t / 5\right)^{-0.5}"),
        (sl.presets.committee(2, 1, lr=sl.Warmup(0.2, 5.0)), r"\gamma &= \min(1, t / 5) \cdot 0.2"),
        (sl.presets.committee(2, 1, lr=halving), r"\operatorname{halving}(t)"),
        (MOVING, r"\pi = \text{linear in } t \text{ through } (0, \begin{pmatrix} 1"),
        (sl.presets.spiked_tensor(3, lr=sl.Steps([2.0], [0.1, 0.05]).shift(1.0)), r"0.1 & \max(0, t - 1) < 2"),
    ],
)  # fmt: skip
def test_equations_have_schedules_as_functions_of_time(problem, text):
    assert text in sl.latex(problem)


def test_flow_has_derivatives_by_values_and_times_of_schedules():
    """Against central differences, to 1e-6 of the largest."""
    start = sl.Overlaps([1.0], [[0.2]], [[1.0]])

    def risk(theta):
        lr, noise = sl.Steps(theta[:1], theta[1:3]), sl.Linear([0.0, 1.0], theta[3:5])
        problem = sl.presets.committee(1, 1, "erf", lr=lr, noise=noise)
        return problem.at(2.0).risk(sl.flow(problem, start, 2.0, rtol=1e-9))

    theta, h, fast = jnp.array([0.7, 0.5, 1.0, 0.1, 0.3]), 1e-4, jax.jit(risk)
    slope = jax.jit(jax.grad(risk))(theta)
    differences = [(fast(theta + h * one) - fast(theta - h * one)) / (2 * h) for one in np.eye(5)]
    np.testing.assert_allclose(slope, differences, atol=1e-6 * np.abs(slope).max())
