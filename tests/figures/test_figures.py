"""Every figure is made at a tiny size, with numbers in its caption and its files in one folder."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys

import matplotlib
import matplotlib.pyplot as plt
import pytest
from click.testing import CliRunner

import sgdlimits as sl
from sgdlimits.papers.figures import FIGURES

matplotlib.use("Agg")
TINY = {
    "committee-classical": dict(width=2, teachers=(2,), d=20, runs=4, end=20.0, end_ode=100.0),
    "committee-high-d": dict(width=2, teachers=2, d=20, runs=4, end=20.0, end_ode=100.0),
    "double-descent": dict(
        d=30, ratios=(0.5, 1.0), steps=(5, 10), strong=10, high=1000, tails=(30.0,), long=20, runs=3, runs_high=3
    ),
    "effective-1": dict(d=40, end=2.0, shown=4, runs=4),
    "effective-2": dict(d=40, runs=4, end=2.0, ring_runs=4, ring_end=2.0),
    "effective-3": dict(d=40, runs=4, end=2.0, ring_runs=4, ring_end=2.0),
    "effective-ridge": dict(snr=(100.0,), shares=(0.5, 0.8), chain=(40, 2.0, 4)),
    "full-batch": dict(d=12, widths=(1, 4), ratios=(2,), steps=40, runs=4, times=5),
    "mean-field": dict(widths=(2, 4), ratios=(1.0, 10.0, 100.0), times=30),
    "mediocrity-1-left": dict(d=40, t_max=30.0, sgd=4, sde=4, chain=4),
    "mediocrity-1-right": dict(dimensions=(32, 40), widths={1: (4, 4, 1.0), 2: (4, 4, 1.0)}),
    "mediocrity-2": dict(widths=(1, 2), d=40, t_max=20.0, sgd=4, chain=4),
    "mediocrity-3": dict(d=40, t_max=30.0, sgd=4, sde=4, chain=4),
    "mediocrity-4": dict(points=4, lines=2, steps=3, dimensions=(3, 30), starts=4),
    "mediocrity-5": dict(d=40, t_max=12.0, widths={1: 4, 2: 4}, sgd=4),
    "mediocrity-width": dict(d=40, runs={1: 4, 2: 4}, starts=4),
    "noise-delay": dict(dimensions={40: 4}, starts=(1.0, 2.0)),
    "quadratic-1": dict(width=2, teachers=2, d=1000, lr=0.1, end=60.0, runs=4),
    "quadratic-2": dict(rates=5, starts=2, widths=(3, 4, 5)),
    "quadratic-5": dict(dimensions=(2, 3), widest=4),
    "quadratic-6": dict(d=2, teachers=(1, 2, 3), widest=3),
    "quadratic-3": dict(width=3, teachers=2, starts=3, end=20.0, times=11),
    "quadratic-4": dict(limit=2.0, shown=(1024, 2048), runs=4, end=0.1, sizes=(1024, 2048), compared=4, early=0.1),
    "open-activations": dict(runs={40: 4}, activations=1, cases=1, d=40, shown=2, length=4.0),
    "open-noise": dict(d=40, t_max=12.0, runs=4, noises=(1.0,), width=1, steps=(0.05,), dimensions=(32, 40), long=12.0, many=4),
    "open-second-layer": dict(width=2, widths={2: 1}, ratios=(0.3, 1.0), d=40, chain=4, ends=(20.0, 4.0, 20.0)),
    "second-pass": dict(d=12, noises=(0.0, 0.1), ratios=(2, 4), shown=(2, 4), runs=4, times=6),
    "regimes": dict(kappas=2, deltas=5, widths=(1, 2)),
    "which-optimiser": dict(
        k=2,
        d=40,
        many=2,
        batches=(2,),
        runs=4,
        tuning=4,
        tried=((2.0, 3.0), (1.25,)),
        rules=("SGD", "Muon"),
        teachers=(2,),
        dimensions={60: 4},
        limits=(60,),
        cap=15.0,
        final=(2.0, 4.0),
    ),
    "your-data": dict(runs=4, t_max=0.5, d=20, saves=3),
    "which-optimiser-why": dict(
        k=2,
        ks=(2,),
        rates=(1.0, 2.0),
        own=(1.0,),
        log2_points=4,
        d=40,
        many=4,
        batches=(),
        noises=(),
        runs=4,
        tuning=4,
        slopes=(1000, 4),
        late=20.0,
        trial=None,
    ),
    "schedule-escape": dict(runs={40: 4}, pieces=6, shown=40),
    "schedule-muon": dict(
        k=2,
        d=40,
        many=2,
        tuning=4,
        evaluations=dict.fromkeys(("sgd", "own", "shared", "muon"), 3),
        starts=1,
        runs=4,
        cap=4.0,
        saves=8,
    ),
    "optimal-curriculum": dict(pieces=4, rates=(3.0,), grid=(1.0, 3.0), starts=1, gradients=12, d=40, runs=4),
    "optimal-dropout": dict(
        pieces=2, coarse=2, rates=(1.0,), shown=(1.0,), spans=(5.0,), starts=1, gradients=12, d=40, runs={"theirs": 4}
    ),
    "optimal-replay": dict(
        similarities=(0.5,), shown=(0.5,), first=5.0, span=2.0, pieces=2, starts=1, gradients=12, draws=2, d=40, runs=4
    ),
    "plateau-exits": dict(d=40, runs=4, geometries=("phase retrieval, one unit on the sphere",)),
    "plateau-spectrum": dict(dimensions={"He_2, sphere": {0.0: (40, 80), 0.7: (40, 80)}}, runs=4, ode=2, blocks=6),
    "staircase": dict(d=(100, 150), harder=(100, 150), runs=4, names=("x1 x2", "x1 + x1 x2")),
    "staircase-correlated": dict(correlations=(0.0, 0.3), d=(400, 600), harder=(400, 600), runs=4),
    "scaling-exponents": dict(points=3, steps=10**9, blocks=48),
    "scaling-features": dict(models=6, largest=300, times=31, blocks=64),
    "scaling-frontier": dict(models=5, largest=1000, times=21, blocks=24),
    "scaling-momentum": dict(d=10**4, decades=6, pieces=4, blocks=24),
    "scaling-schedule": dict(d=10**4, horizons=(1e2, 1e4), pieces=2, evaluations=6, blocks=24),
    "single-index": dict(runs={n: {32: 4, 40: 4} for n in (1, 2, 3)}),
}
"""Sizes with few units and the same numbers of runs, so that figures share what is compiled. The demo has its own test."""


def test_every_figure_has_a_tiny_size():
    assert {*TINY, "demo"} == set(FIGURES)


def run(line: str):
    from sgdlimits.cli import main

    return CliRunner().invoke(main, line.split(), prog_name="sgdlimits")


def check(caption: str):
    assert len(re.findall(r"\d\.\d", caption)) >= 5
    assert "nan" not in caption
    assert "  " not in caption


@pytest.mark.full
@pytest.mark.parametrize("name", TINY)
def test_every_figure_can_be_drawn_has_a_caption_with_numbers_and_keeps_datasets(name, monkeypatch):
    module = importlib.import_module(FIGURES[name])
    monkeypatch.setattr(module, "MIN_GRID_WIDTH", 2, raising=False)
    monkeypatch.setattr("sgdlimits.papers.mediocrity.theory.times.ODE_STARTS", 4)
    kept = {}
    with plt.rc_context(sl.plot.PAPER):
        drawn = module.make_figure(module.FULL_SIZE.with_changes(**TINY[name]), 1, kept.setdefault)
        drawn.figure.canvas.draw()
        plt.close(drawn.figure)
    assert kept
    check(" ".join(drawn.caption))


def test_a_figure_is_a_picture_a_caption_with_numbers_and_datasets(tmp_path, monkeypatch):
    """One of them through the command line, with all its files."""
    name = "mediocrity-1-left"
    module = importlib.import_module(FIGURES[name])
    monkeypatch.setattr(module, "QUICK_SIZE", module.FULL_SIZE.with_changes(**TINY[name]))
    monkeypatch.chdir(tmp_path)
    result = run(f"figure {name} --quick --out here --seed 1")
    assert result.exit_code == 0, result.output
    files = {path.name for path in (tmp_path / "here").iterdir()}
    assert {f"{name}.png", f"{name}.svg", f"{name}.txt"} < files
    assert [file for file in files if file.startswith(f"{name}-") and file.endswith(".nc")]
    assert (tmp_path / "here" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    caption = (tmp_path / "here" / f"{name}.txt").read_text(encoding="utf-8")
    assert caption.strip() in result.stdout
    check(caption)


def test_the_list_has_all_figures_and_imports_no_machinery():
    code = (
        "import sys\n"
        "from sgdlimits.cli import main\n"
        "main(['figure', '--list'], standalone_mode=False)\n"
        "heavy = {'jax', 'xarray', 'matplotlib', 'scipy', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(FIGURES)
    assert all(len(line.split()) > 6 for line in done.stdout.splitlines())


def test_what_was_finished_stays_after_ctrl_c(tmp_path, monkeypatch):
    """Ctrl-C while the second level is simulated leaves the dataset of the first."""
    module = importlib.import_module(FIGURES["mediocrity-1-left"])
    monkeypatch.setattr(module, "QUICK_SIZE", module.QUICK_SIZE.with_changes(d=40, t_max=2.0, sgd=4, sde=4, chain=4))
    monkeypatch.chdir(tmp_path)
    calls = []

    def once(*arguments, **more):
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return simulate(*arguments, **more)

    simulate = sl.simulate
    monkeypatch.setattr(sl, "simulate", once)
    result = run("figure mediocrity-1-left --quick --out here")
    assert result.exit_code == 130
    assert result.stderr.endswith(
        "Interrupted. Saved in here: mediocrity-1-left-sgd.nc.\n"
    )  # after a progress bar, if it was slow
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["mediocrity-1-left-sgd.nc"]
    assert sl.load(tmp_path / "here" / "mediocrity-1-left-sgd.nc").sizes["run"] == 4


def test_every_size_that_quick_makes_smaller_is_said_in_words():
    from sgdlimits.papers.figure import describe_reduction

    for name, place in FIGURES.items():
        module = importlib.import_module(place)
        assert set(vars(module.QUICK_SIZE)) == set(vars(module.FULL_SIZE)) == set(module.PARAMETER_WORDS), name
        said = describe_reduction(module.QUICK_SIZE, module.FULL_SIZE, module.PARAMETER_WORDS)
        assert said.startswith("Made with --quick: "), name
        assert re.search(r"\d instead of|fewer", said), name
        assert describe_reduction(module.FULL_SIZE, module.FULL_SIZE, module.PARAMETER_WORDS) == ""


def test_a_figure_that_fails_leaves_the_others_and_a_page_that_says_so(tmp_path, monkeypatch):
    """Three of them in one call: two are on the page with caption, picture and files, the third with its reason."""
    from html.parser import HTMLParser

    names = ("mediocrity-1-left", "mediocrity-4", "quadratic-5")
    for name in names:
        module = importlib.import_module(FIGURES[name])
        monkeypatch.setattr(module, "QUICK_SIZE", module.FULL_SIZE.with_changes(**TINY[name]))
    monkeypatch.setattr("sgdlimits.papers.mediocrity.figures.mediocrity_4.make_figure", lambda *_: 1 / 0)
    monkeypatch.setattr(importlib.import_module("sgdlimits.cli.figure"), "FIGURES", dict.fromkeys(names))
    result = run(f"figure all --quick --out {tmp_path / 'here'}")
    assert result.exit_code == 2
    assert "the figures mediocrity-4 failed" in result.stderr
    assert "2 of 3 figures are on" in result.stdout
    page = (tmp_path / "here" / "index.html").read_text(encoding="utf-8")
    assert "2 quick, 1 failed." in page
    assert "ZeroDivisionError: division by zero" in page
    assert page.count(" instead of ") >= 2
    assert "://" not in page
    found = []
    reader = HTMLParser()
    reader.handle_starttag = lambda tag, attributes: found.append((tag, dict(attributes)))
    reader.feed(page)
    places = [given.get("src") or given["href"] for tag, given in found if tag in ("img", "a")]
    sections = {given["id"] for tag, given in found if tag == "section"}
    assert sections == set(names)
    assert {place[1:] for place in places if place.startswith("#")} == sections
    assert all((tmp_path / "here" / place).is_file() for place in places if not place.startswith("#"))
    assert "mediocrity-1-left-chain.nc" in places
