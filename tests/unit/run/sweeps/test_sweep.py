"""A sweep is one dataset; more of it computes only what is new, and is what one larger sweep gives."""

from __future__ import annotations

import json

import numpy as np
import pytest
import xarray as xr

import sgdlimits as sl
from sgdlimits.run.sweeps.names import function_name


def test_a_sweep_is_a_dataset_with_its_parameters_as_dimensions(small):
    found = small("a")
    assert dict(found.final_risk.sizes) == {"lr": 2, "noise": 3, "run": 4}
    assert found.noise.values.tolist() == [0.0, 0.5, 1.0]
    assert set(found.status.values.ravel()) == {"finished"}


def test_each_run_is_that_of_simulate_with_the_seed_of_its_point(small, tmp_path):
    found = small("a", keep=None, save=3)
    unit = sl.load(next((tmp_path / "a").iterdir()))
    alone = sl.simulate(
        sl.presets.phase_retrieval(**_numbers(unit)), sl.Chain(30), sl.RandomInit(30), t_max=1, runs=4, save=3,
        seed=int(unit.attrs["seed"]),
    )  # fmt: skip
    np.testing.assert_array_equal(alone.M, unit.M)
    np.testing.assert_array_equal(found.M.sel(_numbers(unit)), unit.M)
    assert found.step.dims == ("t",)
    assert (found.attrs["d"], found.attrs["t_max"]) == (30, 1.0)


def _numbers(unit):
    return json.loads(unit.attrs["point"])


def test_points_have_their_own_random_numbers_unless_they_are_to_share_them(small):
    over = sl.grid(lr=[0.05, 0.050001])
    level, start = sl.Chain(30), sl.RandomInit(30)
    for common, least, most in ((False, -0.5, 0.5), (True, 0.99, 1.0)):
        risk = small(f"common {common}", over, level, start, runs=64, common=common).final_risk.values
        assert least < np.corrcoef(risk)[0, 1] < most


@pytest.mark.parametrize(
    "level", [sl.Chain(30), sl.ODE(), pytest.param(sl.SGD(130), marks=pytest.mark.full)], ids=lambda level: level.name
)
def test_more_values_and_more_runs_are_one_larger_sweep(level, small, contents):
    start = sl.RandomInit(level.d if level.name == "sgd" else 30)
    how = dict(level=level, start=start, t_max=0.1, keep="overlap")
    small("grown", sl.grid(lr=[0.05]), runs=5, **how)
    first = contents("grown")
    small("grown", sl.grid(lr=[0.05, 0.1]), runs=5, **how)
    assert first.items() < contents("grown").items()
    grown = small("grown", sl.grid(lr=[0.05, 0.1], noise=[0.0, 0.5]), runs=7, **how)
    assert first.items() < contents("grown").items()
    assert len(contents("grown")) == 6  # two points had five runs, and got two more
    xr.testing.assert_identical(grown, small("one", sl.grid(lr=[0.05, 0.1], noise=[0.0, 0.5]), runs=7, **how))


def test_what_is_there_is_not_computed_again(small, monkeypatch):
    before = small("a")
    monkeypatch.setattr("sgdlimits.run.sweeps.worker.compute_unit", lambda *given: pytest.fail("computed"))
    xr.testing.assert_identical(small("a"), before)


def test_points_that_differ_in_numbers_are_compiled_once(small):
    from sgdlimits.kernel.lanes import _load_compiled_code

    small("warm", sl.grid(lr=[0.05]))
    before = _load_compiled_code.cache_info().misses
    small("a", sl.grid(lr=[0.06, 0.07], noise=[0.1, 0.2], d=[40, 50]), "chain", "random")
    assert _load_compiled_code.cache_info().misses == before


def test_parameters_go_to_level_start_optimiser_and_problem(tmp_path):
    found = sl.sweep(
        "quadratic_network", "chain", "random", over=sl.grid(optimiser=["heavy_ball"], d=[20, 30], beta=[0.5]), folder=tmp_path,
        runs=2, t_max=0.5, fixed={"width": 1}, keep=["final_risk", "overlap"], progress=False,
    )  # fmt: skip
    assert dict(found.final_risk.sizes) == {"optimiser": 1, "d": 2, "beta": 1, "run": 2}
    assert np.isfinite(found.final_risk).all()


def test_the_parameter_of_before_is_the_optimiser(small):
    """Its name was `rule`, which works and warns; the units are the same, since their hash is."""
    new = small("a", sl.grid(optimiser=["heavy_ball"], beta=[0.5]))
    with pytest.warns(DeprecationWarning, match="The parameter rule of a sweep is now optimiser"):
        old = small("a", sl.grid(rule=["heavy_ball"], beta=[0.5]))
    xr.testing.assert_identical(old, new)
    with pytest.warns(DeprecationWarning, match="rule"):
        small("a", sl.grid(beta=[0.5]), fixed={"rule": "heavy_ball"})


def test_a_fixed_parameter_is_for_the_optimisers_that_have_it(small):
    rules = sl.grid(optimiser=["sgd", "heavy_ball"])
    both = small("a", rules, fixed={"beta": 0.5})
    assert dict(both.final_risk.sizes) == {"optimiser": 2, "run": 4}
    plain = small("b", sl.grid(optimiser=["sgd"]))
    np.testing.assert_array_equal(both.final_risk.sel(optimiser="sgd"), plain.final_risk[0])
    with pytest.raises(sl.BadInput, match="beta is a parameter of none of the optimisers sgd"):
        small("c", sl.grid(optimiser=["sgd"]), fixed={"beta": 0.5})


def test_times_and_widths_that_differ_find_room_in_one_dataset(small, tmp_path):
    over = sl.grid(width=[1, 2], d=[20, 30])
    found = small("a", over, "chain", "random", keep=None, save=4, runs=2)
    assert found.M.dims == ("width", "d", "run", "time", "student", "teacher")
    assert found.t.dims == ("width", "d", "time")
    assert np.isnan(found.M.sel(width=1).values[..., 1, :]).all()
    lazy = sl.collect(tmp_path / "a", lazy=True)
    assert lazy.M.chunks
    xr.testing.assert_equal(lazy.compute(), found)


def test_exit_times_stop_runs_and_keep_the_censored(small):
    found = small("a", sl.grid(lr=[0.05, 0.1]), keep={"exit_time": {"threshold": 0.3}}, t_max=20)
    assert found.censored.dtype == bool
    assert (found.status == xr.where(found.censored, "finished", "stopped")).all()
    np.testing.assert_array_equal(found.exit_time, found.t_end)


def test_a_function_of_the_dataset_is_kept(small):
    found = small("a", sl.grid(lr=[0.1]), keep=largest)
    assert found.largest.dims == ("lr", "run")
    with pytest.raises(sl.BadInput, match="predicts no classes"):
        small("b", sl.grid(lr=[0.1]), keep="accuracy")


def largest(dataset):
    return abs(dataset.M).max(["t", "student", "teacher"]).values


def test_a_function_builds_the_problem(tmp_path):
    build = lambda rate: sl.presets.phase_retrieval(lr=rate)
    found = sl.sweep(
        build,
        sl.ODE(),
        sl.FixedInit(0.3),
        over=[{"rate": 0.1}, {"rate": 0.2}],
        folder=tmp_path,
        t_max=1,
        save=2,
        progress=False,
    )
    assert dict(found.M.sizes)["rate"] == 2


def test_a_function_of_a_script_that_changes_is_another_one():
    def built(scale, power):
        script = {"__name__": "__main__"}
        exec(f"scale = {scale}\ndef build(lr):\n    return (lambda x: x**{power})(lr) * scale", script)
        return function_name(script["build"])

    assert built(1, 2) == built(1, 2)
    assert len({built(1, 2), built(2, 2), built(1, 3)}) == 3


def test_random_points_are_one_dimension_and_a_larger_draw_begins_with_a_smaller_one(small):
    few, many = (sl.random_points(count, lr=(0.01, 0.1, "log"), noise=(0, 1.0)) for count in (3, 5))
    assert many.points[:3] == few.points
    found = small("a", many)
    assert dict(found.final_risk.sizes) == {"point": 5, "run": 4}
    assert sorted(found.lr.values) == sorted(point["lr"] for point in many.points)


def test_points_of_a_list_stay_in_its_order_and_those_of_a_folder_are_sorted(small, tmp_path):
    rates = [0.3, 0.1, 0.2]
    assert small("a", [{"lr": lr, "noise": 10 * lr} for lr in rates]).lr.values.tolist() == rates
    assert sl.collect(tmp_path / "a").lr.values.tolist() == sorted(rates)


def test_refinement_adds_points_along_the_boundary_alone(small):
    over = sl.grid(lr=np.linspace(0.02, 0.3, 5))
    found = small(
        "a", over, sl.ODE(), sl.FixedInit(0.3), runs=1, t_max=100, refine=sl.Refine("final_risk", rounds=4, share=0.5)
    )
    assert found.sizes["lr"] == 9  # one in each of four rounds
    assert np.diff(found.lr).min() < 0.07 / 15
    near = float(found.lr[np.abs(np.diff(found.final_risk.values[:, 0])).argmax()])
    assert abs(near - 2 / 12) < 0.01  # above 2/12 nothing is learnt


def test_a_list_of_mistakes_is_told_at_once(small):
    with pytest.raises(sl.BadInput) as told:
        small("a", sl.grid(lr=[0.1, -1], widht=[2]), fixed={"noise": -1})
    for words in ("lr must be a finite number above 0", "widht is not a parameter", "noise must be"):
        assert words in str(told.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"over": 3}, "over must be a grid"),
        ({"over": []}, "needs points"),
        ({"over": {"lr": 0.1}}, "lr must be a list of values"),
        ({"over": {"lr": [0.1, 0.1]}}, "has a value twice"),
        ({"over": [{"lr": 0.1}, {"noise": 1}]}, "all points must have"),
        ({"keep": "risk"}, "keep must name values to store"),
        ({"engine": -1}, "engine must be"),
        ({"shard": (3, 2)}, "shard must be"),
        ({"refine": "final_risk", "shard": (1, 2)}, "refine needs all points"),
        ({"level": "chain"}, "needs d, which is missing"),
        ({"level": "chian"}, "level must be one of"),
        ({"t_max": None}, "t_max is missing"),
        ({"fixed": {"lr": 0.1}}, "both fixed and varied"),
        ({"fixed": {"optimiser": "fast"}}, "optimiser must be one of"),
        ({"fixed": {"optimiser": "heavy_ball", "beta": 2}}, "beta must be a finite number of at least 0 and below 1; got 2"),
        ({"over": {"optimiser": ["sgd", "nesterov"], "beta": [0.5]}}, "beta is not a parameter of the optimiser sgd"),
        ({"kernel": "abacus"}, "kernel must be one of"),
        ({"save": [2.0]}, "save must hold times from 0 to t_max = 1"),
        ({"refine": "overlap"}, "refine must name a stored value: final_risk"),
    ],
)
def test_what_cannot_be_swept_is_refused(change, words, small):
    with pytest.raises(sl.BadInput, match=words):
        small("a", **change)
