"""`sgdlimits exit-time`: one table of all levels and formulas, and the limit of the learning rate."""

from __future__ import annotations

import re

import numpy as np
import pytest
import xarray as xr

import sgdlimits as sl

SMALL = "exit-time --d 40 --threshold 0.3 --runs 4 --quiet"


def rows(output: str) -> dict[str, list[str]]:
    """Return the words of each row of the table, by method."""
    lines = output.split("to the chain\n")[1].split("\n\n")[0].splitlines()
    return {re.split(r"\s{2,}", line)[0]: re.split(r"\s{2,}", line)[1:] for line in lines}


def test_exit_time_prints_the_exit_table(command, tmp_path, monkeypatch):
    monkeypatch.setattr("sgdlimits.analysis.first_passage.MAX_TERMS", 256)  # of the curve: its law has its own tests
    result = command(f"{SMALL} --sgd-runs 4 --out table.nc --plot curves.png")
    assert result.exit_code == 0, result.output
    table = xr.load_dataset(tmp_path / "table.nc", engine="h5netcdf")
    problem = sl.presets.phase_retrieval(lr=1 / 12)
    expected = sl.exit_table(problem, 40, 0.3, runs=4, sgd_runs=4, progress=False)
    xr.testing.assert_allclose(table, expected.data)
    shown = rows(result.stdout)
    assert list(shown) == ["SGD", "chain", "SDE", "ODE", *table.source.values[4:]]
    assert {"annealed (47)", "quenched (46)", "noisy", "sde (52)", "backward"} < set(shown)
    chain, quenched = table.sel(source="chain"), table.sel(source="quenched (46)")
    assert shown["chain"][0] == "4"
    assert float(shown["chain"][2]) == pytest.approx(float(chain.t), abs=0.006)
    assert float(shown["chain"][1]) == pytest.approx(40 * float(chain.t), abs=0.6)
    assert float(shown["chain"][3]) == pytest.approx(float(chain.t) / 12, abs=0.0006)
    assert shown["quenched (46)"][-1] == f"{100 * float(quenched.difference):+.1f} %"
    assert float(table.low[1]) < float(chain.t) < float(table.high[1])
    assert np.isnan(table.low[4:]).all()
    assert "kappa = 1 " in result.stdout
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_widths_have_only_the_formulas_that_apply(command, monkeypatch):
    monkeypatch.setattr("sgdlimits.papers.mediocrity.theory.times.ODE_STARTS", 4)  # as many as runs: compiled once
    result = command("exit-time --width 2 --lr 2/12 --d 40 --threshold 0.3 --runs 4 --quiet")
    assert result.exit_code == 0, result.output
    shown = set(rows(result.stdout))
    assert {"chain", "SDE", "ODE", "annealed (47)", "noisy_ode", "sde_quenched"} <= shown
    assert not {"backward", "SGD"} & shown


@pytest.mark.parametrize(("options", "limit"), [("--lr 0.3", "0.1667"), ("--lr 0.25 --noise 4", "0.125")])
def test_a_learning_rate_above_the_limit_is_told_with_the_limit(options, limit, command):
    result = command(f"exit-time {options} --d 200 --threshold 0.6 --runs 24 --quiet")
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert f"= {limit} (max_lr for this width): the plateau is stable and the risk stays" in text
    exited, first, last = re.search(r": (\d+) exited, and the mean risk went from ([\d.]+) to ([\d.]+)\.", text).groups()
    assert int(exited) == 0
    assert float(last) == pytest.approx(float(first), rel=0.1)


def test_censored_runs_make_medians_and_no_comparison_with_means():
    from sgdlimits.papers.mediocrity.exit_table import tabulate

    problem, start, until = sl.presets.phase_retrieval(lr=1 / 12), sl.RandomInit(40), sl.exits(0.3)
    how = dict(t_max=13, runs=4, until=until, progress=False)
    runs = {"chain": sl.simulate(problem, sl.Chain(40), start, **how), "ODE": sl.simulate(problem, sl.ODE(), start, **how)}
    found = tabulate(problem, 40, 0.3, {name: sl.exit_times(each, 0.3) for name, each in runs.items()})
    table = found.data
    assert table.attrs["statistic"] == "median"
    assert 0 < int(table.censored[0]) < 2
    assert np.isnan(table.difference[2:]).all()
    assert np.isfinite(table.t[0])
    assert float(table.difference[0]) == 0
    assert "Therefore t is the median in rows with runs" in repr(found)


def test_other_presets_have_their_own_options_and_a_table_by_level(command, tmp_path):
    options = "--preset single_index --activation he2 --lr 0.05 --d 100 --threshold 0.3 --runs 4 --quiet"
    result = command(f"exit-time {options} --out table.nc --plot curves.png")
    assert result.exit_code == 0, result.output
    table = xr.load_dataset(tmp_path / "table.nc", engine="h5netcdf")
    expected = sl.plateau_exits(sl.presets.single_index("he2", lr=0.05), 100, 0.3, runs=4, progress=False)
    xr.testing.assert_allclose(table, expected.data)
    assert re.search(r"^t +chain +SDE +ODE +noisy law$", result.stdout, re.MULTILINE)
    assert str(expected) in result.stdout
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_preset_that_is_not_there_and_options_of_another_are_told(command):
    for options, words in (("--preset comittee", "committee"), ("--preset committee --sgd-runs 3", "No such option")):
        result = command(f"exit-time {options}")
        assert result.exit_code == 2
        assert words in result.output
    assert "--teachers" in command("exit-time --preset committee --help").output
