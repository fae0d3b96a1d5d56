"""Mean field: the approach of wide networks to the limit of infinite width, and learning with a fast second layer [5]_.

Left, the largest distance over time between the ODE of p units, corrector included, and the mean-field limit of the same units,
for a committee with two teachers. Middle and right, a network of infinite width learns a sum of Hermite polynomials of one
direction, with a second layer :math:`1/\\epsilon` times faster than the first [12]_: its component n is learnt at a time of
order :math:`\\epsilon^{1/2n}` as :math:`\\epsilon\\to0`.
"""

from __future__ import annotations

from math import factorial

import jax.numpy as jnp
import numpy as np
import xarray as xr
from numpy.polynomial import hermite_e

import sgdlimits as sl
from sgdlimits.papers.figure import DrawnFigure, Figure, SaveDataset, Size, bar, curve_styles, make_panels, tabulate

LR, NOISE, FINAL_TIME = 1.0, 0.01, 4.0
"""Learning rate, label noise, and end in the paper's time of the committees."""
LEARNT_SHARE, FITTED_RATIOS = 0.5, 3
"""Share of a component at which it counts as learnt, and number of ratios in the fits."""
# compared statistics with their legends
GAP_LABELS = {"M": "$M$", "q": "$Q_{jj}$", "off": r"$Q_{jl} - m_j P^{-1} m_l$", "risk": "risk"}
STUDENT_ACTIVATION, TARGET_FUNCTION, TARGET_ATOMS = np.ones(4), np.array([0.0, 1.0, 0.5, 0.5]), 10
"""Coefficients along normalised Hermite polynomials, and the number of units."""
FULL_SIZE = Size(widths=(4, 8, 16, 32, 64), ratios=(1.0, 1e4, 1e6, 1e8, 1e10, 1e12, 1e14), times=140)
QUICK_SIZE = FULL_SIZE.with_changes(widths=(4, 8, 16), ratios=(1.0, 1e8, 1e9, 1e10), times=90)
PARAMETER_WORDS = dict(widths="widths", ratios="ratios of the learning rates", times="saved times")


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Solve committees and a network of infinite width, and draw gaps to the mean-field limit and learning times."""
    gaps = save_dataset("gaps", tabulate_gaps(size.widths, seed))
    ratios = bar(size.ratios, desc="ratios")
    components = xr.concat([simulate_components(ratio, size.times) for ratio in ratios], "ratio")
    components["t_half"] = (("ratio", "n"), np.array([half_times(components.sel(ratio=ratio)) for ratio in size.ratios]))
    save_dataset("components", components)
    return DrawnFigure(_draw_figure(gaps, components), _write_caption(gaps, components))


def tabulate_gaps(widths: tuple[int, ...], seed: int) -> xr.Dataset:
    """Tabulate the largest gap over time between the ODE and the mean-field limit of the same units, for each width."""
    # narrower committees have the first units of the widest
    overlap = np.random.default_rng(seed).uniform(-0.5, 0.5, size=(max(widths), 2))
    rows = [_largest_gaps(p, overlap[:p]) for p in bar(widths, desc="widths")]
    return tabulate(rows, "width", {"width": widths}, lr=LR, noise=NOISE, end=FINAL_TIME, time="that of the paper")


def _largest_gaps(p: int, overlap: np.ndarray) -> dict[str, float]:
    """Return, for each statistic, its largest gap over time between the ODE and the mean-field limit at width p.

    Here `overlap` has the initial overlaps of the units with the teachers.
    """
    problem, start = sl.presets.committee(p, 2, lr=LR, noise=NOISE), sl.FixedInit(jnp.asarray(overlap))
    how: dict = dict(t_max=FINAL_TIME * p / LR, save=21, progress=False)
    ode = sl.simulate(problem, sl.ODE(rtol=1e-6), start, **how).isel(run=0)
    limit = sl.simulate(problem, sl.MeanField(rtol=1e-6), start, **how).isel(run=0)
    M, Q = ode.M.values, ode.Q.values
    apart = {
        "M": M - limit.M.values,
        "q": np.diagonal(Q, axis1=1, axis2=2) - limit.q.values,
        "off": (Q - M @ M.swapaxes(1, 2)) * (1 - np.eye(p)),
        "risk": ode.risk.values - limit.risk.values,
    }
    return {name: float(np.abs(apart[name]).max()) for name in GAP_LABELS}


def simulate_components(ratio: float, times: int) -> xr.Dataset:
    """Simulate the mean field, and return the learnt share of each Hermite component, and the risk, against time.

    Here `ratio` is the ratio of the learning rates of the two layers, and `times` the number of saved times.
    """
    activation, target = (_hermite_sum(coefficients) for coefficients in (STUDENT_ACTIVATION, TARGET_FUNCTION))
    problem = sl.presets.single_index(activation, target, lr=float(TARGET_ATOMS), width=TARGET_ATOMS, train_second=ratio)
    # orthogonal to the direction, with second-layer weights of both signs
    start = sl.Particles(jnp.linspace(-1, 1, TARGET_ATOMS), jnp.zeros((TARGET_ATOMS, 1)), jnp.ones(TARGET_ATOMS))
    t = np.geomspace(1e-7, 10, times)
    run = sl.simulate(problem, sl.MeanField(rtol=1e-6), start, t_max=10, save=t, progress=False).isel(run=0, teacher=0)
    parts = [(run.a * run.M**n).mean("student").values * STUDENT_ACTIVATION[n] / TARGET_FUNCTION[n] for n in (1, 2, 3)]
    curves = {"component": (("n", "t"), np.array(parts)), "risk": ("t", run.risk.values)}
    return xr.Dataset(curves, coords={"n": [1, 2, 3], "t": t, "ratio": ratio})


def half_times(curves: xr.Dataset) -> list[float]:
    """Return for each Hermite component the time at which half of it is learnt, interpolated in log time."""
    x, found = np.log(curves.t.values), []
    for values in curves.component.values:
        i = int(np.argmax(values > LEARNT_SHARE))
        found.append(float(np.exp(np.interp(LEARNT_SHARE, values[i - 1 : i + 1], x[i - 1 : i + 1]))) if i else np.nan)
    return found


def _hermite_sum(coefficients: np.ndarray) -> sl.Polynomial:
    """Build a sum of normalised Hermite polynomials with the given coefficients."""
    return sl.Polynomial(hermite_e.herme2poly(coefficients / np.sqrt([factorial(n) for n in range(coefficients.size)])))


def _fit_exponent(x: xr.DataArray, y: xr.DataArray) -> float:
    """Fit the exponent of a power law y(x) by a line through log y against log x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def _draw_figure(gaps: xr.Dataset, components: xr.Dataset) -> Figure:
    figure, (left, middle, right) = make_panels(1, 3, figsize=(11, 3.6))
    for (name, label), look, marker in zip(GAP_LABELS.items(), curve_styles(len(GAP_LABELS)), "os^D", strict=True):
        exponent = _fit_exponent(gaps.width, gaps[name])
        left.loglog(gaps.width, gaps[name], marker, color=look.colour, label=f"{label}, $p^{{{exponent:.2f}}}$", markersize=4)
        fitted = np.exp(np.log(gaps[name]).mean() + exponent * (np.log(gaps.width) - np.log(gaps.width).mean()))
        left.loglog(gaps.width, fitted, color=look.colour, linestyle=look.dashes, linewidth=1)
    left.set(xlabel=r"width $p$", ylabel="largest gap to the mean field", title="committee, two teachers")
    left.set_ylim(bottom=min(float(gaps[name].min()) for name in GAP_LABELS) / 20)
    left.set_xticks(gaps.width.values, [str(p) for p in gaps.width.values], minor=False)
    left.minorticks_off()
    slow, fast = components.isel(ratio=0), components.isel(ratio=-1)
    for n, look in zip((1, 2, 3), curve_styles(3), strict=True):
        middle.semilogx(fast.t, fast.component.sel(n=n), color=look.colour)
        middle.semilogx(slow.t, slow.component.sel(n=n), color=look.colour, linestyle=":", linewidth=1.2)
        # the asymptotics begin at large ratios
        late = components.isel(ratio=slice(-FITTED_RATIOS, None)).sel(n=n)
        label = rf"$n = {n}$, $\epsilon^{{{-_fit_exponent(late.ratio, late.t_half):.2f}}}$"
        right.loglog(1 / components.ratio, components.t_half.sel(n=n), "o-", color=look.colour, markersize=4, label=label)
    title = rf"second layer at $10^{{{np.log10(float(fast.ratio)):.0f}}}$ lr (dotted: {float(slow.ratio):g} lr)"
    middle.set(xlabel=r"time of the paper, $\gamma t/p$", ylabel="component / the target's", title=title)
    right.set(xlabel=r"$\epsilon$, ratio of learning rates", ylabel="time to half of the component")
    right.set_title("one after the other")
    left.legend(loc="lower left")
    right.legend(loc="lower right")
    return figure


def _write_caption(gaps: xr.Dataset, components: xr.Dataset) -> list[str]:
    words = {"M": "overlaps M", "q": "squared norms", "off": "Q off its diagonal to M P^-1 M^T", "risk": "risk"}
    each = [f"{words[name]} p^{_fit_exponent(gaps.width, gaps[name]):.2f}" for name in GAP_LABELS]
    first, last = components.isel(ratio=0), components.isel(ratio=-1)
    times = [", ".join(f"{t:.2g}" for t in curves.t_half.values) for curves in (first, last)]
    late = components.isel(ratio=slice(-FITTED_RATIOS, None))
    fits = [f"{-_fit_exponent(late.ratio, late.t_half.sel(n=n)):.3f} (1/{2 * n} = {1 / (2 * n):.3f})" for n in (1, 2, 3)]
    return [
        f"Left: the largest gap over time {FINAL_TIME:g} of the paper between the ODE of p units, corrector included, and the",
        f"mean-field limit of the same units, at lr {LR:g} and noise {NOISE:g}, from p = {int(gaps.width[0])} to",
        f"{int(gaps.width[-1])}. Fitted: {', '.join(each)}; the theorem of the slides bounds Q by p^-1/2. At p =",
        f"{int(gaps.width[-1])} the gap in the risk is {float(gaps.risk[-1]):.1e}. Middle and right: a wide network learns h1",
        "+ (h2 + h3)/2 from units orthogonal to its direction, its second layer 1/epsilon times faster than its first. At",
        f"1/epsilon = {float(first.ratio):g} half of the components 1, 2, 3 is reached at {times[0]}, at 1/epsilon =",
        f"{float(last.ratio):.0e} at {times[1]}. From 1/epsilon = {float(late.ratio[0]):.0e} to {float(late.ratio[-1]):.0e}",
        f"these times fall as epsilon to the powers {', '.join(fits)}. {_describe_local_exponents(components)}",
    ]


def _describe_local_exponents(components: xr.Dataset) -> str:
    """Describe in words the exponents of the learning times between successive ratios of learning rates."""
    later = components.isel(ratio=slice(1, None))
    slopes = -np.diff(np.log(later.t_half.values), axis=0) / np.diff(np.log(later.ratio.values))[:, None]
    ends = (f"{float(ratio):.0e}" for ratio in later.ratio[1:])
    each = (f"{', '.join(f'{slope:.2f}' for slope in row)} up to {end}" for row, end in zip(slopes, ends, strict=True))
    return f"From each ratio (but the first) to the next the powers are {'; '.join(each)}."
