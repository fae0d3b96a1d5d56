"""A file is believed only where it is what was written; all others are named and left out."""

from __future__ import annotations

import shutil
import warnings

import numpy as np
import pytest
import xarray as xr

import sgdlimits as sl


@pytest.fixture
def folder(small, tmp_path):
    small("a")
    return tmp_path / "a"


def units(folder):
    return sorted(path for path in folder.iterdir() if path.suffix == ".nc")


def flip(path, share):
    """One bit of a file is another."""
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 64
    path.write_bytes(bytes(content))


DAMAGE = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1000]),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("text"),
    "another's name": lambda path: shutil.copy(max(units(path.parent)), path),
    "dataset": lambda path: sl.save(sl.simulate(sl.presets.phase_retrieval(), sl.ODE(), sl.FixedInit(0.3), t_max=1), path),
    "folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_file_is_named_left_out_and_computed_again(what, folder, small):
    before, path = small("a"), min(units(folder))
    DAMAGE[what](path)
    with pytest.warns(sl.SweepWarning, match=f"{path.name}: .*left out"):
        found = sl.collect(folder)
    assert int(np.isnan(found.final_risk).all("run").sum()) == 1
    with pytest.warns(sl.SweepWarning, match=f"{path.name}: .*computed again"):
        again = small("a")
    np.testing.assert_array_equal(again.final_risk, before.final_risk)


def test_no_flipped_bit_changes_a_number(folder, small):
    """Wherever it is: the file is left out, or its numbers are those that were written."""
    before, path = small("a"), units(folder)[0]
    whole, refused = path.read_bytes(), 0
    for share in np.linspace(0.001, 0.999, 25):
        path.write_bytes(whole)
        flip(path, share)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sl.SweepWarning)
            risk = sl.collect(folder).final_risk
        lost = np.isnan(risk)
        refused += int(lost.any())
        assert lost.all("run").sum() == lost.any("run").sum() <= 1
        np.testing.assert_array_equal(risk.values[~lost.values], before.final_risk.values[~lost.values])
    assert refused > 3


def test_foreign_files_are_named_and_left_out(folder, small):
    before = small("a")
    (folder / "notes.txt").write_text("mine")
    with pytest.warns(sl.SweepWarning, match=r"notes\.txt: the file is not a result of a sweep"):
        found = sl.collect(folder)
    np.testing.assert_array_equal(found.final_risk, before.final_risk)


def test_a_folder_without_results_is_told(tmp_path):
    with pytest.raises(sl.BadInput, match="there is no folder"):
        sl.collect(tmp_path / "x")
    with pytest.raises(sl.BadInput, match="holds no results yet"):
        sl.collect(tmp_path)


def test_results_are_exported(folder, tmp_path):
    found = sl.collect(folder)
    sl.export(folder, tmp_path / "all.nc")
    with xr.open_dataset(tmp_path / "all.nc", engine="h5netcdf") as file:
        np.testing.assert_array_equal(file.final_risk, found.final_risk)
    sl.export(folder, tmp_path / "all.zarr")
    with xr.open_zarr(tmp_path / "all.zarr", consolidated=False) as store:
        np.testing.assert_array_equal(store.final_risk, found.final_risk)
        assert store.status.attrs["flag_meanings"] == ["finished"]
    with pytest.raises(sl.BadInput, match="exists already"):
        sl.export(folder, tmp_path / "all.zarr")
    with pytest.raises(sl.BadInput, match=r"must end in \.zarr or \.nc"):
        sl.export(folder, tmp_path / "all.csv")
