"""Mistakes of users give one sentence and exit code 2; Ctrl-C saves finished work."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest

import sgdlimits as sl
from sgdlimits.cli import ALL_COMMANDS

RUN = "run phase_retrieval --d 30 --quiet"
COMMANDS = [command.name for command in ALL_COMMANDS]
BAD = {
    "negative noise": (f"{RUN} --noise -1", "--noise must be a finite number of at least 0; got -1"),
    "no units": (f"{RUN} --width 0", "--width must be an integer of at least 1; got 0"),
    "half a unit": (f"{RUN} --width 1.5", "--width must be an integer"),
    "learning rate of zero": (f"{RUN} --lr 0", "--lr must be"),
    "not a number": (f"{RUN} --lr fast", "'fast' is not a number"),
    "infinite number": (f"{RUN} --lr nan", "--lr must be a finite number"),
    "division by zero": (f"{RUN} --lr 1/0", "'1/0' is not a number"),
    "unknown preset": ("run phase_retrievel", "Did you mean phase_retrieval? The presets are"),
    "unknown command": ("rum", "Did you mean run? The commands are"),
    "unknown option": (f"{RUN} --widht 2", "--widht"),
    "less than a step": (f"{RUN} --t-max 0.001", "--t-max must be at least one step"),
    "no time": (f"{RUN} --t-max 0", "--t-max must be"),
    "no runs": (f"{RUN} --runs 0", "--runs must be"),
    "negative seed": (f"{RUN} --seed -1", "--seed must be"),
    "unknown level": (f"{RUN} --level pde", "'pde' is not one of"),
    "no dimension": ("run phase_retrieval", "the level chain needs --d, which is missing"),
    "no dimension for the start": ("run phase_retrieval --level ode", "the start random needs --d"),
    "dimension too small": ("run phase_retrieval --d 0", "--d must be"),
    "parameter of another level": (f"{RUN} --dt 0.1", "--dt is not an option of the level chain"),
    "dimension without use": (
        "run phase_retrieval --level ode --d 3 --start fixed --overlap 0",
        "--d is not an option",
    ),
    "no overlap": (f"{RUN} --start fixed", "the start fixed needs --overlap"),
    "overlap without use": (f"{RUN} --overlap 0.1", "--overlap is not an option of the start random"),
    "impossible overlap": (f"{RUN} --start fixed --overlap 2", "FixedInit"),
    "no folder": (f"{RUN} --out nowhere/x.nc", "nowhere"),
    "no picture": (f"{RUN} --plot x.nc", "Use .png, .svg or .pdf"),
    "no file": ("info x.nc", "there is no file x.nc"),
    "no dataset": ("info text.nc", "text.nc is not a netCDF file"),
    "nothing to plot": ("plot", "FILES"),
    "no file to run again": ("rerun x.nc", "there is no file x.nc"),
    "no threshold": ("exit-time --threshold 0", "--threshold must be a finite number above 0; got 0"),
    "all of the risk": ("exit-time --threshold 1", "--threshold must be below 1; got 1"),
    "no dimension for exits": ("exit-time --d 0", "--d must be an integer of at least 2; got 0"),
    "exits on a line": ("exit-time --d 1", "--d must be an integer of at least 2; got 1"),
    "no runs to exit": ("exit-time --runs 0", "--runs must be an integer of at least 1"),
    "negative runs of SGD": ("exit-time --sgd-runs -1", "--sgd-runs must be an integer of at least 0"),
    "table that is there": ("exit-time --out text.nc", "text.nc exists already"),
    "no picture of exits": ("exit-time --plot x.nc", "Use .png, .svg or .pdf"),
    "no figure": ("figure", "the NAME of a figure is missing. The figures are committee-classical, committee-high-d, demo"),
    "unknown figure": ("figure mediocrity-1-lefd", "Did you mean mediocrity-1-left? The figures are"),
    "negative seed of a figure": ("figure mediocrity-2 --seed -1", "--seed must be an integer of at least 0"),
    "folder that is a file": ("demo --out text.nc --quick", "text.nc cannot be created"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_exit_code_2(case, command, tmp_path):
    (tmp_path / "text.nc").write_text("text")
    line, message = BAD[case]
    result = command(line)
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    assert result.stdout == ""
    (error,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert message in error
    assert [path.name for path in tmp_path.iterdir()] == ["text.nc"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_what_is_finished(how, tmp_path):
    line = "run phase_retrieval --d 40 --runs 4 --t-max 20000000 --save 3000 --out x.nc"
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # also in the background
    code = f"{listen}; from sgdlimits.cli import main; main({line.split()!r})"
    pipes = dict(stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, **pipes) as program:
        try:
            seen = ""
            while not re.search(r"<\d", seen):  # the bar says how long it will take: something is finished
                assert program.poll() is None, seen
                seen += program.stderr.read(1)
            program.send_signal(how)
            out, error = program.communicate(timeout=300)
        finally:
            program.kill()  # whatever went wrong, nothing of it outlives the test
    assert program.returncode == 128 + how, error
    assert "Interrupted. Saved 4 runs up to t = " in error
    assert "Traceback" not in out + error
    assert "\r" not in seen + error
    saved = sl.load(tmp_path / "x.nc")
    assert set(saved.status.values) == {"interrupted"}
    assert saved.sizes["t"] < 3000


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_ends_with_128_and_the_signal(name, how, command, monkeypatch, tmp_path):
    def working(*arguments, **more):
        os.kill(os.getpid(), how)
        time.sleep(5)

    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the processes of pytest-xdist do not listen to it
    monkeypatch.setattr("sgdlimits.cli.options.CommandGroup.invoke", working)
    try:
        result = command(name)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert (result.exit_code, result.stderr) == (128 + how, "Interrupted. Nothing was saved.\n")
    assert not list(tmp_path.iterdir())


def test_ctrl_c_before_the_first_step_says_that_nothing_is_saved(command, monkeypatch, tmp_path):
    def interrupted(*arguments, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr("sgdlimits.run.simulate", interrupted)
    result = command(RUN)
    assert (result.exit_code, result.stderr) == (130, "Interrupted. Nothing was saved.\n")
    assert not list(tmp_path.iterdir())


def test_ctrl_c_in_the_demo_says_where_the_finished_levels_are(command, monkeypatch):
    def interrupted(*arguments, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr("sgdlimits.papers.mediocrity.figures.demo.make_figure", interrupted)
    result = command("demo --out here")
    assert (result.exit_code, result.stderr) == (130, "Interrupted. Nothing was saved.\n")
