"""Damaged files and bad command lines: one sentence and exit code 2, no traceback, and no terminal control characters."""

from __future__ import annotations

import json
import os
from pathlib import Path

import h5py
import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.papers.mediocrity import exit_table

READERS = ("info", "info --json", "rerun --quiet --out y.nc", "phases", "plot --out y.png")


@pytest.fixture
def saved(command):
    """Write a small dataset, x.nc, in the folder of commands."""
    problem = sl.presets.phase_retrieval(lr=0.04, noise=0.1)
    sl.save(sl.simulate(problem, sl.ODE(), sl.FixedInit(0.1), t_max=2, runs=2, save=4, seed=7, progress=False), "x.nc")


def set_attribute(name, value):
    with h5py.File("x.nc", "a") as file:
        file.attrs[name] = value


SPOIL = {
    "empty": lambda: Path("x.nc").write_text(""),
    "text": lambda: Path("x.nc").write_text("text"),
    "cut": lambda: os.truncate("x.nc", os.path.getsize("x.nc") // 2),
    "folder": lambda: (os.remove("x.nc"), os.mkdir("x.nc")),
    "pipe": lambda: (os.remove("x.nc"), os.mkfifo("x.nc")),
    "link to itself": lambda: (os.remove("x.nc"), os.symlink("x.nc", "x.nc")),
    "deep problem": lambda: set_attribute("problem", "[" * 30000),
    "deep start": lambda: set_attribute("start", '{"tuple": [' * 3000 + "1" + "]}" * 3000),
    "list for a problem": lambda: set_attribute("problem", "[1]"),
    "number for a problem": lambda: set_attribute("problem", 3),
    "text for a rate": lambda: set_attribute("rate", "fast"),
    "array for a level": lambda: set_attribute("level", np.arange(3)),
}


@pytest.mark.parametrize("case", SPOIL)
def test_a_bad_file_is_one_sentence_and_exit_code_2(case, command, saved):
    """A command that does not use the damaged part may succeed."""
    SPOIL[case]()
    for reader in READERS:
        name, *options = reader.split()
        result = command(" ".join([name, "x.nc", *options]))
        assert result.exit_code in (0, 2), (reader, result.output, result.exception)
        assert result.exception is None or isinstance(result.exception, SystemExit), (reader, result.exception)
        assert (result.exit_code == 2) == result.stderr.startswith("Error: "), reader
    assert command("info x.nc").exit_code == 2


def test_changed_bytes_are_one_sentence(command, saved):
    content = Path("x.nc").read_bytes()
    for seed in range(30):
        random, spoilt = np.random.default_rng(seed), bytearray(content)
        for place in random.integers(len(content), size=40):
            spoilt[place] = random.integers(256)
        Path("x.nc").write_bytes(spoilt)
        result = command("info x.nc")
        assert result.exit_code in (0, 2), (seed, result.exception)
        assert result.exception is None or isinstance(result.exception, SystemExit), (seed, result.exception)


def test_what_a_terminal_would_obey_is_not_printed(command, saved):
    set_attribute("problem_name", "mine\x1b[2J\x07\u202e")
    result = command("info x.nc")
    assert result.exit_code == 0, result.output
    assert r"mine\x1b[2J\x07\u202e" in result.output
    set_attribute("statistics", "\x1b]0;title\x07")
    result = command("info x.nc")
    assert result.exit_code == 2
    assert "\x1b" not in result.output


LINES = [
    f"{command} {option} {value}"
    for command, options in {
        "exit-time --runs 2 --quiet": ("--d", "--width", "--lr", "--noise", "--threshold", "--runs", "--seed"),
        "run phase_retrieval --d 30 --runs 2 --t-max 1 --quiet": ("--d", "--runs", "--t-max", "--save", "--seed", "--level"),
        "fixed-points phase_retrieval": ("--count", "--runs", "--basins", "--seconds", "--lr"),
        "exponent he3": ("--d", "--noise", "--overlap", "--activation"),
        "critical-points": ("--width", "--teachers", "--noise", "--d"),
        "explore --no-browser": ("--port", "--host"),
        "sweep": ("--workers", "--shard", "--cluster", "--folder"),
    }.items()
    for option in options
    for value in ("nan", "-1", "x\x1b[31m", "1e400", "[]")
]


@pytest.mark.parametrize("line", LINES)
def test_a_bad_option_is_one_sentence_and_exit_code_2(line, command):
    result = command(line)
    assert result.exit_code == 2, (result.output, result.exception)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.stderr.splitlines()[-1].startswith("Error: ")


def test_results_come_as_json(command, saved):
    info = json.loads(command("info x.nc --json").stdout)
    assert (info["level"], info["seed"], info["runs"]) == ("ode", "7", {"finished": 2})
    assert info["problem"]["fields"]
    points = json.loads(command("fixed-points phase_retrieval --lr 0.1 --count 8 --json").stdout)
    assert {"stability", "eigenvalues", "risk", "point"} <= set(points["points"][0])
    table = json.loads(command("exit-time --d 40 --runs 4 --threshold 0.2 --quiet --json").stdout)
    assert [row["source"] for row in table["rows"]][:3] == ["chain", "SDE", "ODE"]
    assert table["d"] == 40


def test_exit_time_keeps_what_was_simulated_before_ctrl_c(command, monkeypatch):
    usual = exit_table.simulate

    def simulate(problem, level, *arguments, **more):
        if level.name == "sde":
            raise KeyboardInterrupt
        return usual(problem, level, *arguments, **more)

    monkeypatch.setattr(exit_table, "simulate", simulate)
    result = command("exit-time --d 40 --runs 4 --threshold 0.2 --quiet --out x.nc")
    assert result.exit_code == 130
    assert any(line.startswith("chain ") for line in result.stdout.splitlines())
    assert "Saved x.nc" in result.stdout
    assert result.stderr.endswith("Interrupted. The table has what was simulated: chain.\n")


def test_ctrl_c_in_a_figure_names_the_files_that_are_new(command, monkeypatch, tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "old.png").touch()

    def interrupted(size, seed, keep):
        (tmp_path / "here" / "demo-sgd.nc").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("sgdlimits.papers.mediocrity.figures.demo.make_figure", interrupted)
    assert command("demo --out here").stderr == "Interrupted. Saved in here: demo-sgd.nc.\n"
