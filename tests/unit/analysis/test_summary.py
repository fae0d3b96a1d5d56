"""Mean, median and quantiles of exit times, with and without censored runs."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import xarray as xr
from scipy.stats import CensoredData, binom, ecdf

import sgdlimits as sl
from sgdlimits.analysis.summary import OrderedExitTimes, survival_curve

pytestmark = pytest.mark.filterwarnings("ignore::sgdlimits.CensoredWarning")


def exits(t, censored) -> xr.Dataset:
    return xr.Dataset({"t": ("run", np.asarray(t, float)), "censored": ("run", np.asarray(censored, bool))})


def ended_at(times, end) -> xr.Dataset:
    """Return exit times censored at `end`."""
    return exits(np.minimum(times, end), times > end)


@pytest.mark.parametrize("seed", range(5))
def test_survival_curve_is_that_of_scipy(seed):
    """Random censoring times, rounded to integers, so that many times are equal."""
    rng = np.random.default_rng(seed)
    t, end = rng.integers(1, 20, size=(2, 60))
    seen, censored = np.minimum(t, end), t > end
    theirs = ecdf(CensoredData(uncensored=seen[~censored], right=seen[censored])).sf
    ours = survival_curve(OrderedExitTimes.from_exits(exits(seen, censored)), confidence=0.9)
    np.testing.assert_allclose(ours.share[1:], theirs.evaluate(ours.t[1:]), atol=1e-12)
    inside = (ours.share > 0) & (ours.share < 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        band = theirs.confidence_interval(confidence_level=0.9, method="log-log")
    np.testing.assert_allclose(ours.low[inside], band.low.evaluate(ours.t[inside]), atol=1e-12)
    np.testing.assert_allclose(ours.high[inside], band.high.evaluate(ours.t[inside]), atol=1e-12)
    assert ours.ended.sum() == np.unique(seen[censored]).size


def test_without_censored_runs_these_are_the_ordinary_mean_and_quantiles():
    t = np.random.default_rng(0).exponential(size=301)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        summary = sl.summarise(t, quantiles=[0.1, 0.25, 0.9])
    assert summary.mean.value == pytest.approx(t.mean())
    assert float(summary.median) == np.median(t)
    for share, estimate in summary.quantiles.items():
        assert estimate.value == np.quantile(t, share, method="inverted_cdf")
    assert (summary.runs, summary.censored, summary.confidence) == (301, 0, 0.95)


def test_bootstrap_does_not_depend_on_how_much_of_it_is_done_at_once(monkeypatch):
    from sgdlimits.analysis import summary

    data = ended_at(np.random.default_rng(0).exponential(size=50), 1.5)
    whole = sl.summarise(data)
    monkeypatch.setattr(summary, "MAX_FLOATS_AT_ONCE", 777)
    parts = sl.summarise(data)
    assert (parts.median, parts.quantiles) == (whole.median, whole.quantiles)
    np.testing.assert_allclose([parts.mean.low, parts.mean.high], [whole.mean.low, whole.mean.high], rtol=1e-12)


@pytest.mark.parametrize("end", [np.inf, 1.2], ids=["all exit", "30 % censored"])
def test_intervals_hold_the_truth_as_often_as_they_say(end):
    """Exponential times, 300 experiments of 150 runs. Percentile intervals of 90 % hold the truth in 90 % of experiments, less
    about 2 % for so few runs: fewer than the 1e-5 quantile at 88 %, or more than that at 92 %, are a false alarm of 2e-5 for
    each of the four."""
    truth = {"mean": 1 - np.exp(-end), "median": np.log(2), 0.2: -np.log(0.8), 0.6: -np.log(0.4)}
    held, experiments = dict.fromkeys(truth, 0), 300
    for seed in range(experiments):
        data = ended_at(np.random.default_rng([7, seed]).exponential(size=150), end)
        found = sl.summarise(data, [0.2, 0.6], confidence=0.9, resamples=400, seed=seed)
        for name, estimate in {"mean": found.mean, "median": found.median, **found.quantiles}.items():
            held[name] += estimate.low <= truth[name] <= estimate.high
    least, most = binom.ppf(1e-5, experiments, 0.88), binom.ppf(1 - 1e-5, experiments, 0.92)
    assert all(least <= count <= most for count in held.values()), held


def test_with_more_than_half_censored_the_median_is_infinite_and_lower_quantiles_stay_right():
    t = np.random.default_rng(3).exponential(size=2000)
    data = ended_at(t, np.quantile(t, 0.4))
    assert float(data.censored.mean()) == pytest.approx(0.6, abs=1e-3)
    with pytest.warns(sl.CensoredWarning, match=r"1200 of 2000 runs are censored, so that the mean is a lower bound"):
        summary = sl.summarise(data, quantiles=[0.3, 0.9])
    assert summary.median.value == summary.median.high == np.inf
    assert "more than half censored" in str(summary)
    assert summary.quantiles[0.3].value == np.quantile(t, 0.3, method="inverted_cdf")
    assert summary.quantiles[0.3].low < -np.log(0.7) < summary.quantiles[0.3].high
    assert summary.quantiles[0.9].value == np.inf
    assert "not reached" in str(summary)
    assert summary.mean.high < t.mean()
    assert "at least" in str(summary)


def test_interval_of_a_quantile_at_the_edge_of_what_was_observed_has_a_finite_low_end():
    t = np.random.default_rng(3).exponential(size=400)
    median = sl.summarise(ended_at(t, np.quantile(t, 0.49))).median
    assert median.value == median.high == np.inf
    assert np.isfinite(median.low)


def test_runs_that_all_stay_have_infinite_quantiles_and_a_mean_of_what_was_observed():
    summary = sl.summarise(exits([3.0, 3.0, 3.0], [True] * 3))
    assert (summary.mean.value, summary.median.low, summary.quantiles[0.1].value) == (3.0, np.inf, np.inf)


def test_censored_runs_that_ended_early_count_until_their_end():
    """Two of four exit at 1; one of the two left ends at 2, and the last exits at 3: S is 1/2 from 1 on, and 0 from 3 on."""
    summary = sl.summarise(exits([1, 1, 2, 3], [False, False, True, False]), quantiles=[0.9])
    assert (summary.mean.value, summary.median.value, summary.quantiles[0.9].value) == (2.0, 1.0, 3.0)


def test_scaled_summary_is_the_summary_of_scaled_times():
    t = np.random.default_rng(0).exponential(size=64)
    summary, scaled = sl.summarise(ended_at(t, 1.0)), sl.summarise(ended_at(4 * t, 4.0))
    assert summary.scaled(4) == scaled
    assert (summary.scaled(4).runs, summary.scaled(4).censored) == (scaled.runs, scaled.censored)


def test_warning_points_at_the_caller():
    with pytest.warns(sl.CensoredWarning, match="larger t_max") as caught:
        sl.summarise(exits([1.0, 2.0], [False, True]))
    assert caught[0].filename == __file__
