"""The forms of schedules by formulas of their own, and schedules from text."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.run.record import from_json, to_json
from sgdlimits.schedule import Time, knots_of, schedules_in
from sgdlimits.schedule_text import read_schedule

TIMES = np.array([0.0, 0.3, 1.0, 2.5, 7.0, 10.0, 10.1, 40.0])
LINE = sl.Linear([1.0, 2.0, 10.0], [0.3, 0.1, 0.5])
FORMS = {
    "linear": (LINE, lambda t: np.interp(t, [1.0, 2.0, 10.0], [0.3, 0.1, 0.5])),
    "long linear": (
        sl.Linear(np.arange(100.0) / 10, np.cos(np.arange(100))),
        lambda t: np.interp(t, np.arange(100.0) / 10, np.cos(np.arange(100))),
    ),
    "cosine": (sl.Cosine(0.4, 0.1, 10.0), lambda t: 0.25 + 0.15 * np.cos(np.pi * min(t, 10.0) / 10)),
    "power": (sl.Power(0.4, 0.7, 2.0), lambda t: 0.4 / (1 + t / 2) ** 0.7),
    "warmup": (sl.Warmup(LINE, 4.0), lambda t: FORMS["linear"][1](t) * min(1, t / 4)),
    "warmup of a number": (sl.Warmup(0.2, 4.0), lambda t: 0.2 * min(1, t / 4)),
    "shifted": (LINE.shift(3.0), lambda t: FORMS["linear"][1](max(t - 3, 0))),
    "early": (LINE.shift(-1.5), lambda t: FORMS["linear"][1](t + 1.5)),
    "arithmetic": (2 * LINE + sl.Steps([5.0], [1.0, 2.0]) ** 2, lambda t: 2 * FORMS["linear"][1](t) + (4.0 if t >= 5 else 1)),
    "beside a function": (LINE * (lambda t: jnp.exp(-t)), lambda t: FORMS["linear"][1](t) * np.exp(-t)),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_are_their_formulas(name):
    schedule, formula = FORMS[name]
    np.testing.assert_allclose(schedule.values_at(TIMES), [formula(t) for t in TIMES], rtol=1e-13)
    np.testing.assert_allclose(jax.jit(schedule.__call__)(0.3), formula(0.3), rtol=1e-13)


@pytest.mark.parametrize("name", sorted(set(FORMS) - {"beside a function"}))
def test_knots_are_where_the_slope_or_the_value_jumps(name):
    schedule, _ = FORMS[name]
    knots = knots_of(schedule)
    assert (knots > 0).all()
    assert (np.diff(knots) > 0).all()
    at = lambda t: float(schedule(t))
    inside = np.setdiff1d(np.linspace(0.05, 12.0, 240), knots)
    h = 1e-4
    bends = [t for t in inside if abs((at(t + h) - 2 * at(t) + at(t - h)) / h) > 1e-2]
    assert all(np.abs(knots - t).min() < 2 * h for t in bends)


@pytest.mark.parametrize("name", sorted(set(FORMS) - {"beside a function"}))
def test_forms_are_typed_as_they_are_read_and_files_have_them(name):
    schedule, _ = FORMS[name]
    assert from_json(to_json(schedule)) == schedule
    if name != "long linear":
        np.testing.assert_allclose(read_schedule(repr(schedule)).values_at(TIMES), schedule.values_at(TIMES), rtol=1e-12)


def test_values_may_be_arrays():
    line = sl.Linear([0.0, 2.0], [[1.0, 0.0], [0.0, 1.0]])
    assert line.shape == (2,)
    assert line(0.5).tolist() == [0.75, 0.25]
    assert sl.Cosine([1.0, 0.0], [0.0, 1.0], 2.0)(1.0).round(12).tolist() == [0.5, 0.5]


def test_schedules_are_found_by_name():
    problem = sl.presets.committee(2, 1, lr=LINE, noise=sl.Cosine(0.1, 0.2, 3.0), train_second=True)
    found = {path[-1]: schedule for path, schedule in schedules_in(problem).items()}
    assert found == {"lr": LINE, "lr_second": LINE, "noise": sl.Cosine(0.1, 0.2, 3.0)}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", 0.1),
        ("1/12", 1 / 12),
        ("-2e-3", -2e-3),
        ("(1 + 2)*3 - 2**2", 5.0),
        ("cosine(1/12, 0, 50)", sl.Cosine(1 / 12, 0.0, 50.0)),
        ("steps([10, 20], [0.1, 0.05, 0.01])", sl.Steps([10.0, 20.0], [0.1, 0.05, 0.01])),
        ("Linear(times=[0, 10], values=[0.2, 0.1])", sl.Linear([0.0, 10.0], [0.2, 0.1])),
        ("warmup(power(0.2, 1, 10), span=5).shift(2)", sl.Warmup(sl.Power(0.2, 1.0, 10.0), 5.0).shift(2.0)),
        ("0.1/(1 + t/20)", 0.1 / (1 + Time() / 20.0)),
        ("warmup(0.2, 5) * 2", sl.Warmup(0.2, 5.0) * 2.0),
        (" steps([1], [[1, 0], [0, 1]]) ", sl.Steps([1.0], [[1.0, 0.0], [0.0, 1.0]])),
    ],
)
def test_text_is_a_number_or_a_schedule(text, value):
    found = read_schedule(text)
    if isinstance(value, float):
        assert found == pytest.approx(value)
    else:
        np.testing.assert_allclose(found.values_at(TIMES), value.values_at(TIMES), rtol=1e-14)
        np.testing.assert_allclose(knots_of(found), knots_of(value))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cosine(0.1, 0)", r"cosine takes \(first, last, span\)"),
        ("cosine(0.1, 0, 50, 3)", r"cosine takes \(first, last, span\)"),
        ("cosine(0.1, 0, speed=3)", r"cosine takes \(first, last, span\)"),
        ("cosine(0.1, 0, -5)", "span must be one time above 0"),
        ("steps([10, 5], [1, 2, 3])", "times must be above 0 and increase"),
        ("sine(1)", "sine is not known"),
        ("x + 1", "x is not known"),
        ("0.1 +", "not one expression"),
        ("", "not one expression"),
        ("1/0", "divides by zero"),
        ("[1, 2]", "a row of numbers"),
        ("__import__('os').system('ls')", "is not allowed in a schedule"),
        ("t.real", "is not allowed in a schedule"),
        ("(lambda: 3)()", "is not allowed in a schedule"),
        ("2.shift(3)", "not one expression"),
        ("(2).shift(3)", "only schedules can be shifted"),
        ("True", "is not allowed in a schedule"),
        ("'a'", "is not allowed in a schedule"),
        ("10**10**10", "divides by zero or is too large"),
    ],
)
def test_a_bad_text_is_one_sentence(text, words):
    with pytest.raises(sl.BadInput, match=f"is no schedule: .*{words}.*. Write, for instance, 0.1, 1/12, cosine"):
        read_schedule(text)


def halving(t):
    return 0.2 / (1 + t)


def test_functions_of_time_are_schedules():
    problem = sl.presets.committee(2, 1, lr=halving, noise=lambda t: 0.1 * t)
    assert float(problem.at(1.0).algorithm.lr) == 0.1
    assert float(problem.at(2.0).target.noise) == pytest.approx(0.2)
    assert "lr=halving" in repr(problem)
    plain = sl.presets.committee(2, 1, lr=halving)
    assert from_json(to_json(plain)) == plain
    written = to_json(problem)
    with pytest.raises(sl.BadInput, match="a function without a name"):
        from_json(written)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sl.Linear([0.0, 1.0], [0.1]), "one value for each time"),
        (lambda: sl.Linear([1.0, 1.0], [0.1, 0.2]), "at least 0 and increase"),
        (lambda: sl.Linear([-1.0, 1.0], [0.1, 0.2]), "at least 0 and increase"),
        (lambda: sl.Linear([], []), "at least one"),
        (lambda: sl.Cosine(0.1, float("inf"), 2.0), "last must be finite"),
        (lambda: sl.Cosine(0.1, 0.2, 0.0), "span must be one time above 0; got 0"),
        (lambda: sl.Warmup("fast", 1.0), "schedule must be real numbers"),
        (lambda: LINE.shift(float("nan")), "shift of a schedule must be one number"),
        (lambda: sl.presets.committee(lr=sl.Linear([0.0, 1.0], [0.1, -0.1])), "lr must be a finite number of at least 0"),
        (lambda: sl.presets.committee(lr=lambda t: "fast"), "lr fails on a time"),
        (lambda: sl.presets.committee(lr=lambda t: -1.0 - t), "lr must be a finite number of at least 0; got -1"),
        (lambda: sl.presets.committee(lr=lambda t: jnp.ones(2)), "lr must be one number"),
        (lambda: sl.presets.committee(width=lambda t: 2), "width must be one number|width must be an integer"),
        (lambda: sl.Muon(0.1, beta=2 * LINE), "beta must be .* below 1; got 1"),
        (lambda: sl.presets.phase_retrieval(rho=LINE), "rho cannot change with time"),
        (lambda: sl.OnePassSGD(0.1, lr_second={"a": LINE - 1}), "lr_second"),
    ],
)
def test_what_is_no_schedule_is_refused(make, words):
    with pytest.raises(sl.BadInput, match=words):
        make()


def test_a_scheduled_snr_is_a_variance():
    snr = sl.Steps([3.0], [4.0, 25.0])
    problem = sl.presets.binary_mixture(snr=snr)
    assert float(problem.at(1.0).data.sigma) == 0.5
    assert float(problem.at(3.0).data.sigma) == pytest.approx(0.2)
    assert "snr=Steps(times=[3], values=[4, 25])" in repr(problem)
    stats = sl.RandomInit(d=50).one(problem)
    other = sl.presets.binary_mixture(snr=25.0)
    np.testing.assert_allclose(problem.drift(stats, 3.0).M, other.drift(stats).M, rtol=1e-12)


def with_variance(variance):
    return sl.ProjectionProblem(
        data=sl.mixture([[1.0, 0.0], [0.0, 1.0]], variance=variance),
        target=sl.Target(sl.CommitteeReadout("erf"), 2),
        network=sl.TwoLayer(2, "erf"),
        loss=sl.SquaredLoss(),
        algorithm=sl.OnePassSGD(0.5),
    )


def test_a_constant_variance_is_the_number_bit_for_bit():
    go = lambda x: sl.simulate(with_variance(x), sl.Chain(40), sl.RandomInit(40), t_max=1, save=3, progress=False)
    one, other = go(0.3), go(sl.Steps([0.5], [0.3, 0.3]))
    for name in ("M", "Q", "risk"):
        np.testing.assert_array_equal(one[name], other[name])


def test_a_variance_may_fall_to_zero():
    """There the drift is that of inputs at the means of their classes, which has a structure of its own."""
    problem, still = with_variance(sl.Linear([0.0, 1.0], [0.5, 0.0])), with_variance(0.0)
    stats = sl.RandomInit(d=40).one(problem)
    for one, other in zip(jax.tree.leaves(problem.drift(stats, 1.0)), jax.tree.leaves(still.drift(stats)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-14)
    assert float(problem.at(1.0).risk(stats)) == pytest.approx(float(still.risk(stats)), rel=1e-12)
    assert "sigma=Linear(times=[0, 1], values=[0.5, 0]) ** 0.5" in repr(problem)
    assert from_json(to_json(problem)) == problem


def test_a_variance_or_snr_below_zero_is_refused_before_anything_runs():
    problem = sl.presets.binary_mixture(snr=lambda t: 2.0 - t)
    with pytest.raises(sl.BadInput, match="the schedule of sigma leaves its domain"):
        sl.simulate(problem, sl.Chain(40), sl.RandomInit(40), t_max=5, progress=False)


@pytest.mark.parametrize(
    "ask",
    [
        lambda problem: sl.trust(problem, sl.FixedInit(0.1), d=300, t_max=1),
        lambda problem: sl.theory.mediocrity.exit_time(problem, d=300, threshold=0.5, average="annealed"),
    ],
    ids=["trust", "exit_time"],
)
def test_results_for_constant_numbers_say_so(ask):
    with pytest.raises(sl.BadInput, match="lr changes with time, as Cosine"):
        ask(sl.presets.phase_retrieval(lr=sl.Cosine(0.05, 0.01, 5.0)))
