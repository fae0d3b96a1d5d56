"""Files are whole or not there, and never anything but plain files."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import sgdlimits as sl
from sgdlimits.files import HOST_NAME, atomic_replacement, write


def leftovers(folder):
    return sorted(entry.name for entry in folder.iterdir() if entry.name.startswith("."))


def write_half(path):
    with atomic_replacement(path) as partial:
        partial.write_bytes(b"half of the n")
        raise RuntimeError


def write_to_full_disk(path):
    with atomic_replacement(path) as partial:
        partial.symlink_to("/dev/full")
        partial.write_bytes(b"new" * 10**6)


def test_a_block_that_fails_leaves_the_old_file(tmp_path):
    path = write(tmp_path / "a.txt", b"old")
    with pytest.raises(RuntimeError):
        write_half(path)
    assert path.read_bytes() == b"old"
    assert not leftovers(tmp_path)


def test_what_a_killed_process_left_is_cleared_by_the_next_write(tmp_path):
    path = tmp_path / "a.nc"
    code = "import os, sys; from sgdlimits import files\n"
    code += "with files.atomic_replacement(sys.argv[1]) as partial: partial.write_bytes(b'x'); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 9
    assert len(leftovers(tmp_path)) == 1
    mine = path.with_name(f".a.{os.getppid()}@{HOST_NAME}.part.nc")
    mine.touch()  # of a process that lives
    theirs = path.with_name(f".a.{2**22 + 1}@another{HOST_NAME}.part.nc")
    theirs.touch()  # of a process of another machine, of which nothing is known here
    write(path, b"new")
    assert leftovers(tmp_path) == sorted([mine.name, theirs.name])


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_only_plain_files_are_replaced(kind, tmp_path):
    target, path = write(tmp_path / "target", b"kept"), tmp_path / "there"
    {"link": lambda: path.symlink_to(target), "folder": path.mkdir, "pipe": lambda: os.mkfifo(path)}[kind]()
    with pytest.raises(sl.BadInput, match=r"which is not replaced\. Give the path of a regular file"):
        write(path, b"new")
    assert target.read_bytes() == b"kept"


def test_a_full_disk_is_one_sentence_and_keeps_the_old_file(tmp_path):
    """The device that is always full stands for a disk, through a link in place of the partial file."""
    path = write(tmp_path / "a.txt", b"old")
    with pytest.raises(sl.BadInput, match=r"could not be written: No space left on device\. Free disk space"):
        write_to_full_disk(path)
    assert path.read_bytes() == b"old"
    assert not leftovers(tmp_path)


def test_a_dataset_that_the_disk_has_no_room_for_is_not_begun(tmp_path, monkeypatch):
    from sgdlimits.run import io

    data = sl.simulate(sl.presets.phase_retrieval(), sl.ODE(), sl.FixedInit(0.3), t_max=1, save=2)
    monkeypatch.setattr(io.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 100}))
    with pytest.raises(sl.BadInput, match=r"could not be written: it needs .* and the disk has 100 bytes left"):
        sl.save(data, tmp_path / "a.nc")
    assert not list(tmp_path.iterdir())
