"""Commands on datasets, and the demo."""

from __future__ import annotations

import pytest

import sgdlimits as sl


@pytest.fixture
def saved(command):
    """Write a small dataset, x.nc."""
    problem = sl.presets.phase_retrieval(lr=0.04, noise=0.1)
    sl.save(sl.simulate(problem, sl.ODE(), sl.FixedInit(0.1), t_max=2, runs=2, save=4, seed=7), "x.nc")


def test_info_says_how_a_dataset_was_made(command, saved):
    result = command("info x.nc")
    assert result.exit_code == 0, result.output
    for words in (
        "phase_retrieval",
        "lr=0.04",
        "noise=0.1",
        "ODE(",
        "FixedInit(",
        "2 finished",
        "4 from 0 to 2",
        "rerun x.nc",
    ):
        assert words in result.output


def test_rerun_gives_the_same_numbers(command, saved):
    result = command("rerun x.nc --out y.nc")
    assert result.exit_code == 0, result.output
    assert "The numbers are those of x.nc." in result.output
    assert sl.load("x.nc").identical(sl.load("y.nc"))


def test_rerun_takes_changes(command, saved):
    assert command("rerun x.nc --seed 8 --runs 3 --t-max 1 --quiet").output == ""
    again = sl.load("x-again.nc")
    assert (again.attrs["seed"], again.sizes["run"], float(again.t[-1])) == ("8", 3, 1.0)


@pytest.mark.parametrize("options", ["", "--what risk --log --excess 0.01 --clock paper", "--what overlaps"])
def test_plot_saves_one_figure_of_several_files(options, command, saved, tmp_path):
    sl.save(sl.load("x.nc"), "y.nc")
    result = command(f"plot x.nc y.nc {options} --out both.png")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")


def test_phases_of_a_dataset_are_a_table(command):
    problem = sl.presets.phase_retrieval(lr=0.04, noise=0.1)
    sl.save(sl.simulate(problem, sl.ODE(), sl.FixedInit(1e-3), t_max=100, runs=2, save=101), "x.nc")
    result = command("phases x.nc")
    assert result.exit_code == 0, result.output
    for words in ("2 left a plateau", "escape from t", "growth of overlaps", "theory"):
        assert words in result.output
    assert "--band must be" in command("phases x.nc --band 2").output


def test_critical_points_are_a_table_with_spectra(command):
    result = command("critical-points --width 3 --teachers 2 --d 5 --spectra")
    assert result.exit_code == 0, result.output
    assert len(result.output.split("\n\n")[0].splitlines()) == 9
    assert result.output.count("Spectrum of 15 eigenvalues") == 8
    assert "3d - 12" in command("critical-points --width 3 --teachers 2").output
    assert "Give --d" in command("critical-points --spectra").output


def test_presets_are_listed_with_a_line_each(command):
    lines = command("presets").output.splitlines()
    for name in sl.presets.PRESETS:
        assert any(line.startswith(name) and len(line) > len(name) + 10 for line in lines)


def test_demo_writes_figure_caption_and_datasets(command, tmp_path, monkeypatch):
    from sgdlimits.papers.mediocrity.figures import demo

    monkeypatch.setattr(demo, "QUICK_SIZE", demo.QUICK_SIZE.with_changes(d=40, sgd=4, many=4, exits=4))
    result = command("demo --quick --out here --seed 1")
    assert result.exit_code == 0, result.output
    folder = tmp_path / "here"
    datasets = {f"demo-{name}.nc" for name in ("sgd", "chain", "sde", "ode", "exit-times")}
    assert {path.name for path in folder.iterdir()} == datasets | {"demo.png", "demo.svg", "demo.txt"}
    starts = [sl.load(folder / f"demo-{level}.nc").M.values[:, 0] for level in ("sgd", "chain", "sde", "ode")]
    assert all(abs(start - starts[0][0]).max() < 1e-12 for start in starts)
    for level in ("SGD", "chain", "SDE", "ODE", "annealed (47)", "quenched (46)", "noisy_ode"):
        assert any(line.startswith(level) for line in result.stdout.splitlines())
    assert (folder / "demo.txt").read_text(encoding="utf-8").strip() in result.stdout
