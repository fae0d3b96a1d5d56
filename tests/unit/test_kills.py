"""Kills without warning, and a disk that fills up: files are whole, old or new, and the next write clears what is left."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import sgdlimits as sl

pytestmark = pytest.mark.full

PROGRAM = """
import os, random, signal, sys, time, warnings
from pathlib import Path
import sgdlimits as sl
from sgdlimits.files import write

warnings.simplefilter("ignore")  # of forks: the children of this process, which computes nothing, are the only ones that do
path, rng = Path(sys.argv[1]), random.Random(0)
problem = sl.presets.phase_retrieval()

def fork(work):
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    return child

def run(seed=0):
    sl.save(sl.simulate(problem, sl.Chain(30), sl.RandomInit(30), t_max=1, runs=64, save=50, seed=seed, progress=False), path)

def runs():
    for seed in range(1, 1000):
        run(seed)

def writes():
    for content in 1000 * contents:
        write(path, content)

def after(work, seconds):
    # what is there after a child was killed at some time of its work
    child = fork(work)
    time.sleep(rng.uniform(0, seconds))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    parts = [entry.name for entry in path.parent.iterdir() if entry != path]
    assert len(parts) <= 1, parts
    return path.read_bytes(), len(parts)

contents = []
for seed in (0, 1):
    os.waitpid(fork(lambda: run(seed)), 0)
    contents.append(path.read_bytes())
for _ in range(6):
    after(runs, 1.0)
    data = sl.load(path)  # whole, or this raises
    assert data.sizes["run"] == 64 and (data.status == "finished").all(), data
write(path, contents[0])
found = [after(writes, 0.05) for _ in range(44)]
assert {content for content, _ in found} <= set(contents)
sl.save(data, path)
assert [entry for entry in path.parent.iterdir()] == [path]
print(len({content for content, _ in found}), sum(parts for _, parts in found))
"""


def test_fifty_kills_leave_whole_files(tmp_path):
    """Some while runs are computed, most while their file is written again and again."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "x.nc")], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    files, left = map(int, done.stdout.split())
    assert files == 2  # the old one and the new one
    assert left > 0  # of children that were killed in the middle of one


@pytest.fixture
def small_disk(tmp_path):
    """A folder of a quarter of a megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    try:
        made = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if made.returncode:
        pytest.skip(f"no disk can be mounted here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_fills_up_keeps_the_old_file(small_disk):
    """With less room than the disk says, too: what is asked before is only a guess."""
    path = small_disk / "x.nc"
    small = sl.simulate(sl.presets.phase_retrieval(), sl.ODE(), sl.FixedInit(0.3), t_max=1, save=2)
    sl.save(small, path)
    before = path.read_bytes()
    room = small_disk / "room"
    for size in (0, 100_000, 150_000, 200_000):
        room.write_bytes(bytes(size))
        large = small.assign(wide=(("run", "t", "x"), np.random.default_rng(0).normal(size=(1, 2, 12_000))))
        with pytest.raises(
            sl.BadInput,
            match=r"could not be written: .* Free disk space or give another path; no "
            "file was changed",
        ):
            sl.save(large, path)
        assert path.read_bytes() == before
        assert {entry.name for entry in small_disk.iterdir()} == {"x.nc", "room"}


def test_a_full_disk_on_the_command_line_is_one_sentence(small_disk, tmp_path, monkeypatch):
    from click.testing import CliRunner

    from sgdlimits.cli import main

    monkeypatch.chdir(small_disk)
    lines = [
        "run phase_retrieval --d 40 --runs 4 --t-max 0.5 --save 3 --quiet --out x.nc",
        f"run phase_retrieval --d 40 --runs 4 --t-max 0.5 --save 3 --quiet --out {tmp_path}/x.nc --plot x.png",
        "exit-time --d 40 --threshold 0.3 --runs 4 --quiet --out x.nc",
    ]
    (small_disk / "room").write_bytes(bytes(250_000))
    for line in lines:
        result = CliRunner().invoke(main, line.split(), prog_name="sgdlimits")
        assert result.exit_code == 2, result.output
        assert "could not be written: " in result.stderr
        assert "Saved" not in result.output
        assert [entry.name for entry in small_disk.iterdir()] == ["room"]
