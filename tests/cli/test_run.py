"""`sgdlimits run` is `simulate` with its arguments as options."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.level import LEVELS
from sgdlimits.problem.presets import PRESETS

SMALL = "--runs 4 --t-max 0.5 --save 3 --quiet"
"""With --d 40 these options reuse code compiled for the demo and the figures."""


@pytest.mark.parametrize("level", [name for name in LEVELS if name != "second-moments"])  # least squares only
def test_every_level_writes_the_dataset_of_simulate(level, command):
    result = command(f"run phase_retrieval --lr 1/12 --level {level} --d 40 {SMALL} --seed 3")
    assert (result.exit_code, result.output) == (0, "")
    parameters = {} if level in ("ode", "mean-field") else {"d": 40}
    expected = sl.simulate(
        sl.presets.phase_retrieval(lr=1 / 12),
        LEVELS[level](**parameters),
        sl.RandomInit(40),
        t_max=0.5,
        runs=4,
        save=3,
        seed=3,
    )
    saved = sl.load(f"phase_retrieval-{level}-d40-lr0.08333-seed3.nc")
    assert saved.attrs["level"] == level
    np.testing.assert_array_equal(saved.M, expected.M)


@pytest.mark.parametrize("preset", PRESETS)
def test_help_of_a_preset_names_all_its_parameters(preset, command):
    text = command(f"run {preset} --help").output
    for name in inspect.signature(PRESETS[preset]).parameters:
        assert (f"--{name.replace('_', '-')}" in text) == (name not in ("algorithm", "expectation"))  # the first is --optimiser
    assert f"sgdlimits run {preset}" in text
    assert ":math:" not in text
    assert "\\" not in text
    assert "`" not in text


def test_a_new_preset_is_a_command_with_its_own_options(command, monkeypatch):
    def new(snr: float, units: int = 2, kind: str = "flat", deep: bool = False):
        """A new problem.

        Parameters
        ----------
        snr : signal to noise
        """
        assert (snr, units, kind, deep) == (0.5, 3, "flat", True)
        return sl.presets.phase_retrieval(width=units)

    monkeypatch.setitem(PRESETS, "new_problem", new)
    new.__name__ = "new_problem"
    assert "A new problem." in command("run --help").output
    assert "signal to noise  [required]" in command("run new-problem --help").output
    result = command(f"run new_problem --snr 1/2 --units 3 --deep --level ode --start fixed --overlap 0.1 {SMALL}")
    assert result.exit_code == 0, result.output
    assert sl.load("new_problem-ode-seed0.nc").sizes["student"] == 3


def test_levels_and_starts_take_their_own_options(command):
    result = command(
        f"run phase_retrieval --level ode --no-corrector --rtol 1e-6 --start orthogonal --spread 0.1 {SMALL} --out x.nc"
    )
    assert result.exit_code == 0, result.output
    attributes = sl.load("x.nc").attrs
    assert '"corrector": false, "rtol": 1e-06' in attributes["level_parameters"]
    assert '"spread": 0.1' in attributes["start"]


def test_a_run_ends_with_a_table_and_a_figure(command, tmp_path):
    result = command("run phase_retrieval --level ode --start fixed --overlap 0.5 --runs 4 --t-max 1 --plot x.png")
    assert result.exit_code == 0, result.output
    for word in ("final risk", "final |overlap|", "4 finished", "wall time", "phase_retrieval-ode-lr0.05-seed0.nc", "x.png"):
        assert word in result.stdout
    assert (tmp_path / "x.png").stat().st_size > 10_000


def test_diverged_runs_are_a_warning_in_one_sentence(command):
    result = command("run phase_retrieval --no-sphere --lr 50 --level chain --d 30 --runs 3 --t-max 20 --save 3 --out x.nc")
    assert result.exit_code == 0, result.output
    assert "Warning: 3 of 3 runs diverged" in result.stderr
    assert "3 diverged" in result.stdout
    assert ".py" not in result.output


def test_a_file_is_replaced_only_by_force(command, tmp_path):
    (tmp_path / "x.nc").write_text("mine")
    line = f"run phase_retrieval --level ode --start fixed --overlap 0.5 {SMALL} --out x.nc"
    result = command(line)
    assert result.exit_code == 2
    assert result.stderr == "Error: x.nc exists already. Give another --out, or --force to replace it.\n"
    assert (tmp_path / "x.nc").read_text() == "mine"
    assert command(f"{line} --force").exit_code == 0
    assert sl.load("x.nc").sizes["run"] == 4
