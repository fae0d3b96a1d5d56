"""Streams and resumed runs are the simulation itself, bit by bit; observables and the time reach every level."""

from __future__ import annotations

import sys

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl

AT = sl.Overlaps([1.0], [[1.0]], [[1.0]])
LEVELS = {
    "sgd": sl.SGD(30),
    "chain": sl.Chain(30),
    "sde": sl.SDE(30, dt=0.03, samples=8),
    "ode": sl.ODE(),
    "mean-field": sl.MeanField(),
    "local": sl.Local(AT, 30),
}
GO = dict(start=sl.RandomInit(30), t_max=3.0, runs=3, save=13, seed=1, progress=False)


@pytest.fixture
def in_pieces(monkeypatch):
    """Every saved time is a piece."""
    monkeypatch.setattr(sys.modules[sl.simulate.__module__], "MIN_PIECE_SECONDS", 0.0)


@pytest.mark.parametrize("name", LEVELS)
def test_a_stream_that_is_interrupted_ten_times_is_the_simulation(name, in_pieces, tmp_path):
    problem, level = sl.presets.phase_retrieval(lr=0.05), LEVELS[name]
    rng, data, stops = np.random.default_rng(0), None, 0
    whole = sl.simulate(problem, level, **GO)
    assert sl.join(list(sl.stream(problem, level, **GO))).identical(whole)
    while True:
        pieces = []
        for piece in sl.stream(problem, level, resume=data, **GO):
            pieces.append(piece)
            if stops < 10 and len(pieces) == rng.integers(2, 4):
                break
        else:
            break
        data, stops = sl.join(pieces), stops + 1
        if stops == 5:
            data = sl.load(sl.save(data, tmp_path / "half.nc"))
    assert stops >= (1 if name in ("ode", "mean-field") else 5)  # a step of a solver passes several saved times
    assert sl.join(pieces).identical(whole)


@pytest.mark.parametrize("name", ["sgd", "chain", "sde"])
def test_a_run_is_the_same_whatever_times_are_saved(name):
    problem, level = sl.presets.phase_retrieval(lr=0.05), LEVELS[name]
    few, many = (sl.simulate(problem, level, **{**GO, "save": save}) for save in ([1.0, 2.5], np.linspace(0, 3, 61)))
    np.testing.assert_array_equal(few.M, many.sel(t=few.t, method="nearest").M)


def test_a_finished_simulation_goes_on_to_a_later_end_and_with_more_runs():
    problem, level = sl.presets.phase_retrieval(lr=0.05), sl.Chain(30)
    whole = sl.simulate(problem, level, **GO)
    half = sl.simulate(problem, level, **{**GO, "t_max": 1.5, "save": 7, "runs": 2})
    assert sl.simulate(problem, level, resume=half, **GO).identical(whole)


@pytest.mark.parametrize("problem", [sl.presets.phase_retrieval(lr=0.05), sl.presets.spiked_tensor(3, 3.0, lr=0.1)])
def test_times_to_save_change_nothing_of_a_solution(problem):
    """Nor does going on to a later end, as far as what is saved then. The tensor is solved by Radau from t = 240 on."""
    t_max = 40.0 if isinstance(problem, sl.ProjectionProblem) else 600.0
    go = dict(start=sl.RandomInit(30), runs=3, seed=1, progress=False)
    few, many = (sl.simulate(problem, sl.ODE(), t_max=t_max, save=save, **go) for save in (5, 81))
    half = sl.simulate(problem, sl.ODE(), t_max=t_max / 2, save=3, **go)
    more = sl.simulate(problem, sl.ODE(), t_max=t_max, save=5, resume=half, **go)
    np.testing.assert_array_equal(many.risk[:, ::20], few.risk)
    np.testing.assert_array_equal(more.risk[:, 3:], few.risk[:, 3:])
    np.testing.assert_allclose(more.risk, few.risk, rtol=1e-7)


def test_runs_that_ended_stay_ended_when_the_others_go_on():
    problem, until = sl.presets.phase_retrieval(lr=1 / 12), sl.exits(0.3)
    go = {**GO, "until": until, "runs": 8, "save": 2}
    whole, half = (sl.simulate(problem, sl.Chain(30), **{**go, "t_max": t}) for t in (40.0, 12.0))
    assert 0 < (half.status == "stopped").sum() < 8
    more = sl.simulate(problem, sl.Chain(30), resume=half, **{**go, "t_max": 40.0})
    np.testing.assert_array_equal(more.t_end, whole.t_end)
    np.testing.assert_array_equal(more.status, whole.status)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 2}, "its seed differs"),
        ({"runs": 1}, "more than runs = 1"),
        ({"resume": "cut"}, "does not hold the state"),
    ],
)
def test_resume_refuses_another_simulation(change, message):
    problem, level = sl.presets.phase_retrieval(lr=0.05), sl.Chain(30)
    half = sl.simulate(problem, level, **{**GO, "t_max": 1.5, "save": 7})
    if change.pop("resume", None):
        half = half.isel(t=slice(0, 3))
    with pytest.raises(sl.BadInput, match=message):
        sl.simulate(problem, level, resume=half, **{**GO, **change})


@pytest.mark.parametrize("name", LEVELS)
def test_observables_are_functions_of_the_saved_statistics(name):
    problem = sl.presets.phase_retrieval(lr=0.05)
    watch = {"square": lambda stats: (stats.M**2).sum(), "rows": lambda stats: stats.M[:, 0]}
    data = sl.simulate(problem, LEVELS[name], observe=watch, **GO)
    np.testing.assert_allclose(data.square, (data.M.values**2).sum((2, 3)), rtol=1e-14)
    assert data.rows.dims == ("run", "t", "rows_0")
    with pytest.raises(sl.BadInput, match="observe cannot use the name 'risk'"):
        sl.simulate(problem, LEVELS[name], observe={"risk": watch["square"]}, **GO)


class Annealed(sl.SpikedTensor):
    """A spiked tensor whose learning rate falls with time."""

    def at(self, t):
        return eqx.tree_at(lambda problem: problem.lr, self, self.lr / (1 + jnp.asarray(t)))


@pytest.mark.parametrize("level", [sl.Chain(4000), sl.SGD(400), sl.SDE(4000), sl.ODE()], ids=lambda level: level.name)
def test_steps_and_drifts_are_told_the_time(level):
    """Without noise of the start r2 = 1 is fixed as lr falls; the overlap grows by the drift at each time (ODE by hand)."""
    problem, start = Annealed(order=2, snr=2.0, lr=0.1), sl.Spike(m=0.3, r2=0.91)
    data = sl.simulate(problem, level, start, t_max=2.0, runs=16, save=2, progress=False)
    t = np.linspace(0, 2, 20001)
    m, r2 = 0.3, 0.91
    for lr in 0.1 / (1 + t[:-1]):
        R2 = m * m + r2
        m, r2 = m + 1e-4 * lr * (8 * m - 4 * R2 * m), r2 + 1e-4 * (-8 * lr * R2 * r2 + 8 * lr**2 * R2)
    error = data.m.values[:, -1].std() / 4 + 5e-4
    assert abs(data.m.values[:, -1].mean() - m) < 5 * error
