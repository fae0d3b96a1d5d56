"""`sgdlimits sweep`: all mistakes at once, a dry run, the status, an interruption, and the same files in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.run.sweeps import worker
from sgdlimits.run.sweeps.toml import read_spec

GOOD = """
preset = "phase_retrieval"
t_max = 1
runs = 4
keep = "final_risk"
[fixed]
d = 30
[grid]
lr = {from = 0.05, to = 0.1, count = 2}
noise = [0, 0.5, 1]
"""
MANY = """
preset = "phase_retrievel"
levl = "chain"
runs = 0
keep = ["final_rsk"]
[points]
"""
KEYS = """
preset = "phase_retrieval"
save = "all"
common = "yes"
kernel = "abacus"
t_max = 1
refine = {valu = "learnt", rounds = 0}
[fixed]
d = 2.5
[grid]
lr = [-1]
optimiser = ["hevy_ball"]
"""
BAD = {
    "no file": (None, ["there is no file x.toml"]),
    "no TOML": ("runs = = 1", ["x.toml is not TOML", "line 1"]),
    "many": (MANY, [
        "x.toml has 6 mistakes", "preset must be one of phase_retrieval", "Did you mean phase_retrieval?",
        "levl is not a key of a sweep. Did you mean level?", "runs must be an integer of at least 1; got 0",
        "keep must name values to store; got 'final_rsk'", "points Input should be a valid list",
    ]),
    "values": (GOOD.replace("0.5, 1]", "-1]\nwidht = [1]\nsnr = {from = 1, to = 2}"), [
        "4 mistakes", "grid.snr.count is missing", "grid.noise must be a finite number of at least 0; got -1",
        "grid.widht is not a parameter of this sweep",
    ]),
    "keys": (KEYS, [
        "9 mistakes", "save must be the number of times", "common Input should be a valid boolean", "kernel must be one of xla",
        "refine.value is missing", "refine.rounds Input should be", "refine.valu is not a key of a sweep. Did you mean value?",
        "fixed.d must be", "grid.lr must be", "grid.optimiser must be one of sgd",
    ]),
    "a part of a refined grid": (GOOD.replace("runs = 4", 'refine = "final_risk"'), ["refine needs all points"], "--shard 1/2"),
    "a part of how many": (GOOD, ["shard must be (i, n)"], "--shard 12"),
    "missing": ('preset = "phase_retrieval"\n[grid]\nlr = [0.1]', ["t_max is missing", "d is missing, which the level chain"]),
    "two designs": (GOOD + "[random]\ncount = 3\nwidth = [1, 4]", ["grid and random are both given"]),
    "no points": ('preset = "phase_retrieval"\nt_max = 1\n[fixed]\nd = 30', ["the points are missing"]),
    "no module": (GOOD.replace("phase_retrieval", "nowhere:build"), ["nowhere:build cannot be imported"]),
    "fixed and varied": (GOOD.replace("d = 30", "d = 30\nlr = 0.1"), ["grid.lr is fixed as well"]),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_all_mistakes_of_a_file_are_told_at_once(case, command, tmp_path):
    text, words, *more = BAD[case]
    if text is not None:
        (tmp_path / "x.toml").write_text(text)
    result = command(" ".join(["sweep x.toml", *more]))
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    for each in words:
        assert each in result.stderr
    assert not (tmp_path / "x").exists()


def test_a_file_makes_what_the_keywords_make(command, tmp_path):
    (tmp_path / "x.toml").write_text(GOOD)
    assert "0 of 6 units" in command("sweep x.toml --status").output
    for part in ("2/2", "1/2"):
        assert command(f"sweep x.toml --quiet --shard {part}").exit_code == 0
    result = command("sweep x.toml --export all.zarr")
    assert result.exit_code == 0, result.output
    assert "6 units in x. In Python: sgdlimits.collect('x')" in result.output
    assert "6 of 6 units" in command("sweep x.toml --status").output
    over = sl.grid(lr=[0.05, 0.1], noise=[0, 0.5, 1])
    how = dict(over=over, runs=4, t_max=1, keep="final_risk", progress=False)
    sl.sweep("phase_retrieval", "chain", "random", fixed={"d": 30}, folder=tmp_path / "y", **how)
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "xy"]
    assert files[0] == files[1]
    assert (tmp_path / "all.zarr").is_dir()


def test_a_dry_run_computes_nothing_and_says_how_much_there_is(command, tmp_path):
    (tmp_path / "x.toml").write_text(GOOD)
    result = command("sweep x.toml --dry-run")
    assert result.exit_code == 0, result.output
    for words in ("points  6", "units   6, of which 6 are left", "runs    24 in all", "memory  about", "on one core"):
        assert words in result.output
    assert not (tmp_path / "x").exists()
    assert "#SBATCH" in command("sweep x.toml --cluster slurm --job queue=cpu --dry-run").output


def test_designs_of_a_file(tmp_path):
    def points(text):
        (tmp_path / "x.toml").write_text(GOOD[: GOOD.index("[grid]")] + text)
        return read_spec(tmp_path / "x.toml").design.points

    assert points("[[points]]\nlr = 0.1\n[[points]]\nlr = 0.2") == ({"lr": 0.1}, {"lr": 0.2})
    assert points('[random]\ncount = 3\nlr = [0.1, 1, "log"]') == sl.random_points(3, lr=(0.1, 1, "log")).points
    logarithmic = points('[grid]\nlr = {from = 0.01, to = 1, count = 3, scale = "log"}')
    np.testing.assert_allclose([point["lr"] for point in logarithmic], [0.01, 0.1, 1])


def test_an_interrupted_sweep_says_how_to_go_on(command, monkeypatch, tmp_path):
    (tmp_path / "x.toml").write_text(GOOD)
    put, tries = worker.Folder.store, []

    def interrupted(*given):
        tries.append(given)
        if len(tries) == 3:
            raise KeyboardInterrupt
        return put(*given)

    monkeypatch.setattr(worker.Folder, "store", interrupted)
    monkeypatch.setattr(sys, "argv", ["sgdlimits", "sweep", "x.toml"])
    result = command("sweep x.toml")
    assert result.exit_code == 130
    said = "Interrupted. 2 of 6 units are done and kept in x, and the same call resumes the sweep: sgdlimits sweep x.toml\n"
    assert result.stderr == said
    assert command("sweep x.toml --quiet").exit_code == 0
    assert len(tries) == 7  # what was done was not computed again


@pytest.mark.full
def test_a_request_to_end_stops_a_sweep_cleanly(tmp_path):
    (tmp_path / "x.toml").write_text(GOOD.replace("t_max = 1", "t_max = 20000").replace("count = 2", "count = 1000"))
    line = ["sweep", "x.toml", "--quiet"]
    code = f"import sys; sys.argv[1:] = {line}; from sgdlimits.cli import main; main({line!r})"
    pipes = dict(stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, **pipes) as program:
        try:
            while not list(tmp_path.glob("x/[!.]*.nc")):
                assert program.poll() is None, program.stderr.read()
                time.sleep(0.1)
            os.kill(program.pid, signal.SIGTERM)
            out, error = program.communicate(timeout=100)
        finally:
            program.kill()
    assert program.returncode == 143, error
    assert "Traceback" not in out + error
    assert "of 3000 units are done and kept in x, and the same call resumes the sweep: sgdlimits sweep x.toml --quiet" in error
    assert not list(tmp_path.glob("x/.*"))
    assert sl.collect(tmp_path / "x").final_risk.notnull().any()
