"""What the page's files hold."""

from __future__ import annotations

import json

import h5py
import jax.monitoring
import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.analysis.fixed_points import FixedPoints
from sgdlimits.cli.explorer.export import export_page
from sgdlimits.cli.explorer.setting import Setting
from sgdlimits.cli.explorer.views import build_exits, build_portrait, build_spectrum, describe_search, headline_numbers
from sgdlimits.cli.explorer.worker import PageRequest


@pytest.fixture(scope="module")
def job() -> PageRequest:
    """Two settings whose chains have ended, and the ODE of the first."""
    small = {"d": 50, "t_max": 60, "runs": 6}
    made = PageRequest(1, [Setting.from_message({**small, "parameters": {"lr": lr}}) for lr in (0.05, 0.1)], None)
    for side, level in ((0, "chain"), (0, "ode"), (1, "chain")):
        one = made.settings[side]
        how = one.stream_arguments(level)
        made.pieces[side, level] = [sl.simulate(one.problem, one.levels[level], one.start, **how, progress=False)]
        made.ended.add((side, level))
    for side, one in enumerate(made.settings):
        made.views["exits", side] = build_exits(one, made.datasets(side))
        made.views["spectrum", side] = build_spectrum(one, made.datasets(side)["chain"])
    return made


def test_figures_are_of_their_format_and_show_what_is_chosen(job):
    for form, begins in {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}.items():
        name, data = export_page(job, {"format": form, "left": "M[0,0]", "log": True, "logt": True})
        assert name == f"phase_retrieval.{form}"
        assert data.startswith(begins)
    assert "M[0,0]" in export_page(job, {"format": "svg", "left": "M[0,0]"})[1].decode()


def test_netcdf_is_a_dataset_of_the_package_and_holds_the_others_in_groups(job, tmp_path):
    path = tmp_path / "it.nc"
    path.write_bytes(export_page(job, {"format": "nc"})[1])
    chain = job.datasets(0)["chain"]
    assert sl.load(path).risk.equals(chain.risk)
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["B_chain/risk"], job.datasets(1)["chain"].risk)
        np.testing.assert_array_equal(file["A_ode/risk"], job.datasets(0)["ode"].risk)


def test_csv_has_a_row_for_each_level_time_and_quantity(job):
    lines = export_page(job, {"format": "csv"})[1].decode().splitlines()
    assert lines[0] == "level,t,quantity,mean"
    last = [line for line in lines if line.startswith('"B chain"') and '"risk"' in line][-1]
    assert float(last.split(",")[-1]) == pytest.approx(float(job.datasets(1)["chain"].risk[:, -1].mean()), rel=1e-12)


def test_other_formats_are_refused(job):
    with pytest.raises(sl.BadInput, match="png, svg, pdf, nc, csv"):
        export_page(job, {"format": "exe"})


def test_exit_times_are_those_of_summarise_and_all_is_json(job):
    chain, setting = job.datasets(0)["chain"], job.settings[0]
    seen = job.views["exits", 0]
    median = sl.summarise(sl.exit_times(chain, setting.threshold)).scaled(setting.d).median
    np.testing.assert_allclose(seen["rows"]["median"], (median.value, median.low, median.high), rtol=1e-6)
    assert set(seen["marks"]) == {"ode", "quenched", "noisy_ode", "backward"}
    json.dumps([*job.views.values(), headline_numbers(chain)], allow_nan=False)


def test_a_phase_portrait_with_more_of_the_chain_compiles_nothing(job):
    compiled, (chain, ode) = [], (job.datasets(0)[level] for level in ("chain", "ode"))
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **more: compiled.append(name) if "backend_compile" in name else None
    )
    for times in (7, 30, 31):
        seen = build_portrait(job.settings[0], None, ode, chain.isel(t=slice(times)), None)["chain"][0]
        np.testing.assert_allclose([seen[0][0], seen[-1][0]], chain.M[0, [0, times - 1], 0, 0], rtol=1e-6)
        if times == 7:
            compiled.clear()
    assert not compiled


def test_a_search_for_fixed_points_that_did_not_end_says_so():
    ended, cut = (FixedPoints((), "it", 1, 0, stopped=stopped) for stopped in ("", "after 30 s"))
    assert describe_search(None).startswith("Looking")
    assert describe_search(ended) == "No fixed point was found."
    assert describe_search(cut).startswith("No fixed point was found, though there may be some: the search was stopped after")
