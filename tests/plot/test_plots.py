"""Plots show the values in the datasets."""

from __future__ import annotations

import re
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.collections import FillBetweenPolyCollection

import sgdlimits as sl

PLOTS = {"risk": sl.plot.risk, "overlaps": sl.plot.overlaps}


def means(ax):
    """Return the thick lines, by label."""
    return {line.get_label(): line for line in ax.lines if line.get_linewidth() > 1.5}


def thin(ax):
    return [line for line in ax.lines if line.get_linewidth() < 0.6]


def bands(ax):
    return [shape for shape in ax.collections if isinstance(shape, FillBetweenPolyCollection)]


@pytest.mark.parametrize("name", PLOTS)
def test_plots_return_the_axes_they_draw_on(name, dataset):
    assert isinstance(PLOTS[name](dataset()), Axes)
    ax = plt.subplots()[1]
    assert PLOTS[name](dataset(), ax) is ax


@pytest.mark.parametrize("name", PLOTS)
def test_plots_leave_the_dataset_and_the_settings_as_they_are(name, dataset):
    given, settings = dataset(runs=30, diverged=[1]), dict(plt.rcParams)
    copy = given.copy(deep=True)
    PLOTS[name](given, clock="paper")
    assert given.identical(copy)
    assert dict(plt.rcParams) == settings


def test_the_thick_line_is_the_mean_over_runs(dataset):
    given = dataset()
    np.testing.assert_allclose(means(sl.plot.risk(given))["chain"].get_ydata(), given.risk.mean("run"))
    np.testing.assert_allclose(means(sl.plot.overlaps(given))["chain"].get_ydata(), abs(given.M[..., 0, 0]).mean("run"))


def test_the_band_holds_the_middle_of_the_runs(dataset):
    given = dataset(runs=50)
    ax = sl.plot.risk(given, band=(0.2, 0.7))
    (band,) = bands(ax)
    heights = band.get_paths()[0].vertices[:, 1]
    low, high = np.quantile(given.risk, [0.2, 0.7], axis=0)
    assert heights.min() == pytest.approx(low.min())
    assert heights.max() == pytest.approx(high.max())
    assert not bands(sl.plot.risk(given, band=None))


def test_no_more_than_twenty_single_runs_and_a_band_only_beyond_them(dataset):
    many, few = sl.plot.risk(dataset(runs=50)), sl.plot.risk(dataset(runs=5))
    assert (len(thin(many)), len(bands(many))) == (20, 1)
    assert (len(thin(few)), len(bands(few))) == (5, 0)
    two = {"left": dataset(runs=50), "right": dataset(runs=50)}
    assert len(thin(sl.plot.risk(two, singles={"right": 3}))) == 3


@pytest.mark.parametrize("name", PLOTS)
def test_diverged_runs_are_left_out_and_counted_in_the_label(name, dataset):
    ax = PLOTS[name](dataset(runs=30, diverged=[0, 7]))
    line = means(ax)["chain (2 of 30 runs diverged)"]
    assert np.abs(line.get_ydata()).max() < 3
    assert all(np.abs(each.get_ydata()).max() < 3 for each in ax.lines)
    assert ax.dataLim.ymax < 3
    assert "chain (3 of 3 runs diverged)" in means(PLOTS[name](dataset(runs=3, diverged=[0, 1, 2])))


@pytest.mark.parametrize("name", PLOTS)
def test_several_datasets_can_be_told_apart_by_colour_and_in_grey(name, dataset):
    given = [dataset(level=level) for level in ("sgd", "chain", "sde", "ode", "chain")]
    lines = means(PLOTS[name](given))
    assert list(lines) == ["sgd", "chain", "sde", "ode", "chain 2"]
    assert len({line.get_color() for line in lines.values()}) == 5
    assert len({str(line._unscaled_dash_pattern) for line in lines.values()}) == 5
    assert list(means(PLOTS[name]({"one": given[0], "two": given[1]}))) == ["one", "two"]


def test_every_clock_is_a_multiple_of_t(dataset):
    both = {"chain": dataset(d=100), "ode": dataset(level="ode", runs=1)}
    for clock, factor in {"t": 1, "paper": 0.25, "samples": 100}.items():
        for line in means(sl.plot.risk(both, clock=clock)).values():
            np.testing.assert_allclose(line.get_xdata(), factor * both["ode"].t)
    with pytest.raises(sl.BadInput, match="dimension"):
        sl.plot.risk(both["ode"], clock="samples")
    with pytest.raises(sl.BadInput, match="clock must be one of"):
        sl.plot.risk(both, clock="hours")


def test_the_axis_of_samples_counts_t_times_d(dataset):
    ax = sl.plot.risk(dataset())
    above = sl.plot.samples_axis(ax, 100)
    ax.figure.canvas.draw()
    np.testing.assert_allclose(above.get_xlim(), 100 * np.array(ax.get_xlim()))


def test_excess_risk_is_the_risk_above_the_floor(dataset):
    given = dataset()
    ax = sl.plot.risk(given, excess=0.1, log=True)
    assert ax.get_yscale() == "log"
    np.testing.assert_allclose(means(ax)["chain"].get_ydata(), given.risk.mean("run") - 0.1)


def test_few_units_have_a_colour_each_and_many_a_thin_line_each(dataset):
    few = means(sl.plot.overlaps(dataset(width=2, teachers=2)))
    assert list(few) == ["$|M_{1,1}|$", "$|M_{1,2}|$", "$|M_{2,1}|$", "$|M_{2,2}|$"]
    assert len({line.get_color() for line in few.values()}) == 4
    many = sl.plot.overlaps(dataset(width=5, teachers=2))
    assert not means(many)
    assert len(many.lines) == 10
    assert len(many.get_legend().get_texts()) == 1


def test_overlaps_of_students_are_the_upper_triangle_with_their_sign(dataset):
    given = dataset(width=2, runs=1)
    lines = means(sl.plot.overlaps(given, what="Q"))
    assert list(lines) == ["$Q_{1,1}$", "$Q_{1,2}$", "$Q_{2,2}$"]
    np.testing.assert_allclose(lines["$Q_{1,2}$"].get_ydata(), given.Q[0, :, 0, 1])


def test_overview_shows_risk_and_overlaps_of_the_same_runs(dataset):
    left, right = sl.plot.overview({"one": dataset(), "two": dataset(seed=1)})
    assert list(means(left)) == list(means(right)) == ["one", "two"]
    assert left.figure is right.figure
    axes = tuple(plt.subplots(1, 2)[1])
    assert sl.plot.overview(dataset(), axes) == axes


@pytest.mark.parametrize("name", PLOTS)
def test_what_is_no_dataset_is_refused(name, dataset):
    for wrong in (3, [], {}, [dataset(), None], dataset().drop_vars("risk")):
        with pytest.raises(sl.BadInput, match="dataset"):
            PLOTS[name](wrong)
    with pytest.raises(sl.BadInput, match="a, M, Q"):
        sl.plot.overlaps(dataset(), what="N")


def test_the_package_does_not_import_matplotlib_before_a_plot():
    code = "import sys, sgdlimits; sgdlimits.BadInput; assert 'matplotlib' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# --- survival -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def exits(dataset):
    """Return exit times of synthetic runs, whose risk falls from about 2.1 by at most 1."""
    return lambda **how: sl.exit_times(dataset(**how), lambda stats: abs(stats.M[0, 0]) - 0.9)


def test_survival_is_the_share_of_runs_that_have_not_exited(exits):
    given = exits(runs=40)
    line = means(sl.plot.survival(given))["chain"]
    assert line.get_drawstyle() == "steps-post"
    x, y = line.get_data()
    assert (x[0], y[0]) == (0, 1)
    np.testing.assert_allclose(y, [(given.t.values > t).mean() for t in x])


def test_survival_has_a_band_of_the_confidence_asked_for(exits):
    def area(confidence):
        (band,) = bands(sl.plot.survival(exits(runs=40), confidence=confidence))
        x, y = band.get_paths()[0].vertices.T
        return abs((x * np.roll(y, 1) - y * np.roll(x, 1)).sum()) / 2

    assert 0 < area(0.5) < area(0.95) < area(0.99)
    assert not bands(sl.plot.survival(exits(runs=40), confidence=None))


def test_censored_runs_are_marked_and_counted_in_the_label(exits):
    given = exits(runs=40)
    given["censored"][:4] = True
    ax = sl.plot.survival(given)
    line = means(ax)["chain (4 of 40 censored)"]
    (marks,) = [each for each in ax.lines if each.get_marker() == "|"]
    assert set(marks.get_xdata()) == set(given.t.values[:4])
    assert line.get_ydata()[-1] >= 0


def test_survival_has_every_clock_and_refuses_what_holds_no_exit_times(exits, dataset):
    both = {"one": exits(), "two": exits(seed=1)}
    for clock, factor in {"t": 1, "paper": 0.25, "samples": 100}.items():
        lines = means(sl.plot.survival(both, clock=clock))
        np.testing.assert_allclose(lines["two"].get_xdata()[1:], factor * np.unique(both["two"].t))
    ax = plt.subplots()[1]
    assert sl.plot.survival(both["one"], ax) is ax
    for wrong in (3, [], {}, [both["one"], None], dataset()):
        with pytest.raises(sl.BadInput, match="dataset"):
            sl.plot.survival(wrong)
    with pytest.raises(sl.BadInput, match="confidence must be between 0 and 1; got 95"):
        sl.plot.survival(both, confidence=95)


def test_a_logarithmic_scale_says_what_it_cannot_show(dataset):
    data = dataset()
    ax = sl.plot.risk(data, log=True, excess=float(data.risk.median()), singles=0, band=None)
    assert re.fullmatch(r"chain \(\d+ of 168 values are not above 1\.\d+\)", ax.lines[0].get_label())
    with pytest.raises(sl.BadInput, match=r"log=True can show no value: .* does not exceed 9\D.*Give a smaller excess="):
        sl.plot.risk(data, log=True, excess=9.0)


def test_two_problems_in_one_picture_are_named_and_what_cannot_be_is_told(dataset):
    one, other = dataset(), dataset().assign_attrs(problem_name="other")
    drawn = sl.plot.risk([one, other], singles=0, band=None).lines
    assert [line.get_label() for line in drawn] == ["test, chain", "other, chain"]
    spike = one.drop_vars(["a", "M", "Q"]).assign(m=one.risk, r2=one.risk)
    spike = spike.assign_attrs(statistics="Spike", problem_name="spike")
    with pytest.raises(sl.BadInput, match=r"plot\.overlaps cannot draw M of test and m of spike on the same axes\. Use"):
        sl.plot.overview([one, spike])
    assert len(sl.plot.risk([one, spike], singles=0, band=None).lines) == 2


def swept(values, **axes):
    """Return the dataset of a sweep: values over two parameters, with two runs each."""
    runs = np.stack([values - 0.1, values + 0.1], axis=-1)
    return xr.Dataset({"value": ((*axes, "run"), runs)}, axes)


def test_phase_diagram_shows_means_over_runs_and_contours_of_theory():
    values = np.arange(12.0).reshape(3, 4)
    found = swept(values, lr=[0.1, 0.2, 0.3], d=[10, 100, 1000, 10000])
    ax = sl.plot.phase_diagram(found, "lr", "d", "value", theory=lambda lr, d: lr - 0.2)
    np.testing.assert_allclose(ax.collections[0].get_array(), values.T)
    assert (ax.get_xscale(), ax.get_yscale()) == ("linear", "log")
    (line,) = ax.collections[1].get_paths()
    np.testing.assert_allclose(line.vertices[:, 0], 0.2)


def test_phase_diagram_gives_places_without_a_point_the_nearest_value():
    values = np.array([[1.0, np.nan], [np.nan, 4.0]])
    ax = sl.plot.phase_diagram(swept(values, a=[0.0, 1.0], b=[0.0, 1.0]), "a", "b", "value")
    cells = np.asarray(ax.collections[0].get_array())
    assert set(np.unique(cells)) == {1.0, 4.0}
    assert (cells[0, 0], cells[-1, -1]) == (1.0, 4.0)


def test_phase_diagram_refuses_what_is_no_parameter():
    with pytest.raises(sl.BadInput, match="'c' is not a number that the dataset has"):
        sl.plot.phase_diagram(swept(np.eye(2), a=[0.0, 1.0], b=[0.0, 1.0]), "a", "c", "value")


def test_a_film_uncovers_the_curves_from_left_to_right(tmp_path):
    from PIL import Image

    problem = sl.presets.phase_retrieval(lr=0.05)
    film = sl.plot.animate(sl.simulate(problem, sl.ODE(), sl.FixedInit(0.1), t_max=20, save=21), frames=3, seconds=0.3)
    film.save(tmp_path / "film.gif", writer="pillow", dpi=40)
    with Image.open(tmp_path / "film.gif") as picture:
        assert getattr(picture, "n_frames", 1) == 3
