"""Kills without warning, several sweeps into one folder, and a disk that fills up: every unit is there once, bit by bit."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import sgdlimits as sl

pytestmark = pytest.mark.full

PROGRAM = """
import os, random, signal, sys, time, warnings
from pathlib import Path
import numpy as np, xarray as xr
import sgdlimits as sl
from sgdlimits.run.sweeps import worker, unit as units
from sgdlimits.run.sweeps.recipe import Recipe

warnings.simplefilter("ignore")  # of forks: no process computes here
folder, rng = Path(sys.argv[1]), random.Random(0)

def quick(recipe, unit):  # a dataset at once, so that most of the time goes into files
    values = np.random.default_rng(unit.whole["seed"]).normal(size=unit.last - unit.first)
    attrs = {"unit": units.json.dumps(unit.whole, sort_keys=True), "point": units.json.dumps(unit.point)}
    return xr.Dataset({"x": ("run", values)}, {"run": np.arange(unit.first, unit.last)}, attrs)

def fork(work):
    child = os.fork()
    if not child:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return child

def sweep(name, points, runs=2):
    over = sl.grid(lr=np.linspace(0.05, 0.1, points), noise=[0.0, 0.5])
    sl.sweep("phase_retrieval", sl.Chain(30), sl.RandomInit(30), over=over, folder=folder / name, runs=runs, t_max=1,
             keep="final_risk", progress=False)

def content(name):
    found = {path.name: path.read_bytes() for path in (folder / name).iterdir()}
    assert all(each.endswith(".nc") for each in found), list(found)
    return found

def finish(name, points):
    assert os.waitpid(fork(lambda: sweep(name, points)), 0)[1] == 0
    return content(name)

def kill(name, points, writers, seconds):
    children = [fork(lambda: sweep(name, points)) for _ in range(writers)]
    for child in children:
        time.sleep(rng.uniform(0, seconds))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    found = len(list((folder / name).glob("[!.]*.nc"))) if (folder / name).exists() else 0
    assert found == 0 or len(sl.collect(folder / name).data_vars) == 1  # readable at any time
    return found

worker.compute_unit, Recipe.build_simulation = quick, lambda self, point: None
worker.compute_units = lambda recipe, units: ((unit, quick(recipe, unit)) for unit in units)
sweep("warm", 1)  # imports, and no more
reach = [kill("quick", 60, writers, 0.12) for writers in 17 * [3]]
assert finish("quick", 60) == finish("never killed", 60) and len(content("quick")) == 120
print(len(set(reach)), max(reach))
"""


def test_fifty_kills_of_sweeps_lose_nothing(tmp_path):
    """Three sweeps at once into one folder, killed 51 times while they write. How far each comes depends on the machine."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    moments, most = map(int, done.stdout.split())
    assert moments > 1  # kills came at different moments
    assert most > 0


def test_a_killed_sweep_with_a_pool_goes_on(tmp_path):
    """The whole sweep is killed; its processes end with their unit, and the same sweep finishes the rest."""

    def sweep(name, engine=None):
        over = sl.grid(lr=[0.05 + 0.001 * i for i in range(30)])
        how = dict(over=over, folder=tmp_path / name, runs=4, t_max=50, keep="final_risk", engine=engine, progress=False)
        sl.sweep("phase_retrieval", sl.Chain(30), sl.RandomInit(30), **how)
        return {path.name: path.read_bytes() for path in (tmp_path / name).glob("[!.]*")}

    code = inspect.getsource(sweep)
    program = f"import sgdlimits as sl; from pathlib import Path; tmp_path = Path({str(tmp_path)!r})\n{textwrap.dedent(code)}"
    with subprocess.Popen([sys.executable, "-c", f"{program}\nsweep('killed', 1)"]) as process:
        while len(list((tmp_path / "killed").glob("*.nc"))) < 5:
            assert process.poll() is None
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    whole = sweep("whole")
    assert sweep("killed") == whole
    assert len(whole) == 30


def test_a_full_disk_is_one_sentence_and_nothing_half_written_is_read(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mount.returncode:
        pytest.skip(f"no disk can be mounted here: {mount.stderr.strip()}")
    try:
        over = sl.grid(lr=[0.01 * i for i in range(1, 20)])
        how = dict(over=over, runs=4, t_max=1, keep="final_risk", progress=False)
        with pytest.raises(sl.BadInput, match=r"could not be written: .* Free disk space"):
            sl.sweep("phase_retrieval", sl.Chain(30), sl.RandomInit(30), folder=disk / "x", **how)
        found = sl.collect(disk / "x")
        assert 0 < found.sizes["lr"] < 19
        assert found.final_risk.notnull().all()
        assert {path.suffix for path in (disk / "x").iterdir()} == {".nc"}
    finally:
        subprocess.run(["umount", str(disk)], check=True)
