"""Files from others, damaged or malicious: one sentence each, and nothing outside the file is read."""

from __future__ import annotations

import os

import h5py
import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.run.sweeps.store import DamagedFile, read_result


@pytest.fixture
def path(tmp_path):
    """A small dataset on disk."""
    data = sl.simulate(sl.presets.phase_retrieval(), sl.ODE(), sl.FixedInit(0.3), t_max=1, save=3, progress=False)
    return sl.save(data, tmp_path / "x.nc")


def external_storage(file, folder):
    (folder / "secret").write_bytes(np.arange(3.0).tobytes())
    del file["risk"]
    file.create_dataset("risk", (1, 3), float, external=[(str(folder / "secret"), 0, h5py.h5f.UNLIMITED)])


def external_link(file, folder):
    sl.save(sl.simulate(sl.presets.phase_retrieval(), sl.ODE(), sl.FixedInit(0.3), t_max=1, save=3), folder / "other.nc")
    del file["risk"]
    file["risk"] = h5py.ExternalLink(str(folder / "other.nc"), "/risk")


def virtual(file, folder):
    layout = h5py.VirtualLayout((1, 3), float)
    layout[:] = h5py.VirtualSource(str(folder / "other.nc"), "risk", (1, 3))
    del file["risk"]
    file.create_virtual_dataset("risk", layout)


def soft_link_to_itself(file, folder):
    del file["risk"]
    file["risk"] = h5py.SoftLink("/risk")


def group_in_itself(file, folder):
    group = file.create_group("inside")
    group["again"] = group


def huge(file, folder):
    file.create_dataset("large", (10**5, 10**6), float, chunks=(1, 10**6))


def deep_json(file, folder):
    file.attrs["problem"] = "[" * 30000 + "]" * 30000


def numbers_for_text(file, folder):
    file.attrs["level"] = np.arange(3)


def nan_for_rate(file, folder):
    file.attrs["rate"] = np.nan


SPOILT = {
    external_storage: "kept in another file",
    external_link: "is a link to another file or path",
    virtual: "kept in another file",
    soft_link_to_itself: "is a link to another file or path",
    group_in_itself: "nested too deeply",
    huge: "takes 750 GiB",
    deep_json: "x.nc",
    numbers_for_text: "its attribute 'level'",
    nan_for_rate: "its attribute 'rate'",
}


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda spoil: spoil.__name__)
def test_a_file_that_is_not_contained_in_itself_is_refused(spoil, path, tmp_path):
    with h5py.File(path, "a") as file:
        spoil(file, tmp_path)
    with pytest.raises(sl.BadInput, match=SPOILT[spoil]):
        sl.load(path)


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_file_is_read_or_refused_in_a_sentence(seed, path):
    """Cut off, or with 1 to 64 bytes changed, half of the times in the header."""
    random, content = np.random.default_rng(seed), bytearray(path.read_bytes())
    if seed % 5 == 0:
        content = content[: random.integers(len(content))]
    else:
        for place in random.integers(len(content) if seed % 2 else 2048, size=2 ** random.integers(7)):
            content[place] = random.integers(256)
    path.write_bytes(content)
    try:
        sl.load(path)
    except sl.BadInput as reason:
        assert "x.nc" in str(reason)  # noqa: PT017
        assert "\x1b" not in str(reason)  # noqa: PT017


def test_the_file_of_a_unit_with_external_storage_is_damaged(tmp_path):
    name = f"{'0' * 24}-0-1.nc"
    with h5py.File(tmp_path / name, "w") as file:
        file.create_dataset("risk", (3,), float, external=[("/etc/hostname", 0, 24)])
    with pytest.raises(DamagedFile, match="kept in another file"):
        read_result(tmp_path / name)


def test_a_pipe_and_a_link_to_itself_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.nc")
    os.symlink("loop.nc", tmp_path / "loop.nc")
    with pytest.raises(sl.BadInput, match="is not a regular file"):
        sl.load(tmp_path / "pipe.nc")
    with pytest.raises(sl.BadInput, match="there is no file"):
        sl.load(tmp_path / "loop.nc")
