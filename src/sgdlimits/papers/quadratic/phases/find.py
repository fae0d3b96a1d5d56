"""Detection of the plateau of each run, and of the phases before and after it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from sgdlimits.analysis.origin import origin_attributes
from sgdlimits.domain import Fraction, checked
from sgdlimits.errors import BadInput
from sgdlimits.level.base import RUN_DIVERGED
from sgdlimits.papers.quadratic.phases.rates import compute_noise, compute_signals, fit_decay, fit_growth, fit_tail
from sgdlimits.papers.quadratic.phases.result import PHASES, Phases, compute_theory
from sgdlimits.run.schema import check_form

MIN_PLATEAU_TO_FALL = 1 / 3
"""Minimal duration of a plateau relative to the fall after it; an exponential decay stays in a band for only 6 % of it."""
MIN_FINAL_EXCESS = 0.1
"""Smallest excess risk, relative to the start, at which a flat end counts as a plateau; a run that ends lower has learnt."""
TAIL_START = 0.1
"""Fraction of the plateau's excess risk at which the final decay, the tail, begins."""
MIN_BAND_STANDARD_DEVIATIONS = 3.0
"""Minimal half-width of the band around a plateau, in standard deviations of the risk's fluctuations."""
MAX_BAND_WIDENING = 3.0
"""Largest factor by which the requested band around a plateau is widened for fluctuations of the risk."""


class RunPlateau(NamedTuple):
    """Plateau of the risk in one run: its extent in saved times, its excess risk, and the time at which the risk has left it.

    `first` and `last` are indices of saved times, `level` is the excess risk on the plateau, and `half` the time at which the
    fraction `fall` of this risk is lost, or infinity.
    """

    first: int
    last: int
    level: float
    half: float


@checked
def phases(dataset: xr.Dataset, *, band: Fraction = 0.02, fall: Fraction = 0.5, floor: float | None = None) -> Phases:
    r"""Find norm learning, plateau, escape, descent and tail in each run of a dataset, with rates of growth and decay.

    The plateau is the longest stretch of time on which the excess risk stays within a band around a level and after which it
    falls by the fraction `fall`; the stretch must last at least a third of the duration of that fall. Norm learning is the
    time before the plateau. The escape is the fall from the band by the fraction `fall`, the descent continues to a tenth of
    the level, and the tail is the rest of the run.

    Save at least some tens of times on the plateau. Of several plateaus the longest is reported. docs/phases.md explains the
    choices.

    Parameters
    ----------
    dataset : result of `simulate` for any problem and level with a risk and overlaps with fixed directions
    band : relative half-width of the band; it is widened, by at most a factor of three, to three standard deviations of the
        risk's fluctuations between saved times
    fall : fraction of the plateau's excess risk that is lost at the end of the escape
    floor : the risk from which excess is counted; default the floor of the problem. If learning ends above that floor, give the
        final risk, such as the smallest risk in the dataset

    Returns
    -------
    `Phases`, whose `data` is a Dataset over `run`:

    - `outcome`: "left" if a plateau was found and left, "stays" if the run ends on one, "none", or "diverged"
    - `begin`, `end` (run, phase): times of the phases, NaN where they were not seen
    - `level`: the population risk on the plateau
    - `growth`, `growth_error`: growth rate of :math:`\log|C|` on the plateau, where :math:`C_{jr} = M_{jr}/\sqrt{Q_{jj}}` are
      the cosines with the fixed directions. If the differences between students, C minus its mean over students, grow faster,
      it is the growth rate of the differences. The attribute `signal` names the choice
    - `decay`, `decay_error`: decay rate of the cosines between students, if they fall by a factor of two or more
    - `tail_law`: "exponential" or "algebraic", whichever fits better, or "" without a tail; with `tail_rate` or
      `tail_exponent`, and their errors

    Rates are per unit of t. Errors are standard errors from four blocks of each fitted stretch: three degrees of freedom.

    Examples
    --------
    >>> import sgdlimits as sl
    >>> problem = sl.presets.quadratic_network(width=2, teachers=2, lr=0.05)
    >>> runs = sl.simulate(problem, sl.ODE(), sl.OrthogonalInit(1e-4), t_max=300, runs=2, save=301)
    >>> found = sl.phases(runs)
    >>> found.data.outcome.values.tolist(), found.data.tail_law.values.tolist()
    (['left', 'left'], ['exponential', 'exponential'])
    >>> bool(abs(found.data.growth / found.theory["growth"] - 1).max() < 0.01)
    True
    """
    check_form(dataset)
    floor = dataset.attrs["floor"] if floor is None else floor
    t = dataset.t.values
    if t.size < 3:
        raise BadInput(f"the dataset has {t.size} saved times, but phases needs three. Save more times, such as save=200.")
    # excess risks must be positive, as their logarithms are used
    if floor >= dataset.risk.values[:, 0].max():
        raise BadInput(
            f"floor must be below the risk at the start; got {floor:g}. Leave out floor= to use the problem's floor."
        )
    runs = [_excess_risk(dataset, run, floor) for run in range(dataset.sizes["run"])]
    spans = [_find_plateau(t[:seen], excess, band, fall) if seen else None for seen, excess in runs]
    kinds = compute_signals(dataset)
    signal = _choose_signal(kinds, spans)
    noise, noise_between = compute_noise(dataset)
    rows = []
    for run, ((seen, excess), span) in enumerate(zip(runs, spans, strict=True)):
        row: dict[str, Any] = {"outcome": _classify_outcome(seen, span)}
        if span is not None:
            row |= _find_phase_times(t[:seen], excess, span)
            row |= {"level": span.level + floor}
            inside = slice(span.first, span.last + 1)
            row |= fit_growth(t[inside], kinds[signal][run, inside], left=row["outcome"] == "left", noise=noise)
            if "students" in kinds:
                row |= fit_decay(t[inside], kinds["students"][run, inside], noise=noise_between)
        # a run that ends on its plateau has no tail
        if seen and row["outcome"] != "stays":
            level, since = (excess[0], 0.0) if span is None else (span.level, span.half)
            row |= fit_tail(t[:seen], excess, TAIL_START * level, since)
        rows.append(row)
    attributes = {"signal": signal, "band": band, "fall": fall, "floor": float(floor)}
    return Phases(_build_dataset(dataset, rows, attributes), compute_theory(dataset))


def _classify_outcome(seen: int, span: RunPlateau | None) -> str:
    """Return a run's outcome, such as "left", from its number of saved times and its plateau.

    Here `seen` is that number, zero if the run diverged, and `span` the plateau, if there is one.
    """
    if not seen:
        return RUN_DIVERGED
    if span is None:
        return "none"
    return "left" if np.isfinite(span.half) else "stays"


def _excess_risk(dataset: xr.Dataset, run: int, floor: float) -> tuple[int, np.ndarray]:
    """Return a run's number of saved times up to its end, zero if it diverged, and the excess risk at these times."""
    if dataset.status.values[run] == RUN_DIVERGED:
        return 0, np.empty(0)
    # after its end a run repeats its last value
    seen = int((dataset.t.values <= dataset.t_end.values[run] * (1 + 1e-12)).sum())
    excess = dataset.risk.values[run, :seen] - floor
    # a run may fall below an estimated floor
    return seen, np.maximum(excess, np.finfo(float).tiny)


def _find_plateau(t: np.ndarray, excess: np.ndarray, band: float, fall: float) -> RunPlateau | None:
    """Find a run's plateau: its longest flat stretch before a fall, else a flat stretch at its end, else None."""
    if t.size < 3:
        return None
    log = np.log(excess)
    # second differences remove trends; 0.6745 turns a median into a standard deviation, and 6 = 1 + 4 + 1
    noise = np.median(np.abs(np.diff(log, 2))) / (0.6745 * np.sqrt(6))
    half_width = float(np.clip(MIN_BAND_STANDARD_DEVIATIONS * noise, band, MAX_BAND_WIDENING * band))
    # a band of twice the half-width, wherever it lies
    ends = _find_flat_ends(log, 2 * half_width)
    length = t[ends] - t
    # longest candidate first
    for first in np.argsort(-length, kind="stable")[: (length > 0).sum()]:
        last = int(ends[first])
        # the outer quarters still contain the approach and the escape
        middle = (t >= t[first] + length[first] / 4) & (t <= t[last] - length[first] / 4)
        level = float(np.median(excess[middle if middle.any() else slice(first, last + 1)]))
        half = find_crossing(t, excess, (1 - fall) * level, last)
        if np.isfinite(half) and length[first] >= MIN_PLATEAU_TO_FALL * (half - t[last]):
            return _extend_plateau(log, RunPlateau(int(first), last, level, half), half_width)
    first = int(length.argmax())
    level = float(np.median(excess[first:]))
    if ends[first] < t.size - 1 or length[first] < MIN_PLATEAU_TO_FALL * t[-1] or level < MIN_FINAL_EXCESS * excess[0]:
        return None
    return _extend_plateau(log, RunPlateau(first, t.size - 1, level, np.inf), half_width)


def _find_flat_ends(log: np.ndarray, width: float) -> np.ndarray:
    """Return for each index the last index up to which the log risk in `log` varies by at most `width`."""
    ends = np.empty(log.size, int)
    for first in range(log.size):
        rest = log[first:]
        # the range grows with the stretch, so the first violation ends it
        apart = np.maximum.accumulate(rest) - np.minimum.accumulate(rest) > width
        ends[first] = first + (apart.argmax() - 1 if apart.any() else rest.size - 1)
    return ends


def _extend_plateau(log: np.ndarray, span: RunPlateau, half_width: float) -> RunPlateau:
    """Extend a plateau on both sides to where the log risk leaves the band around the plateau's level."""
    outside = np.abs(log - np.log(span.level)) > half_width
    centre = (span.first + span.last) // 2
    before, after = np.flatnonzero(outside[:centre]), np.flatnonzero(outside[centre:])
    first = int(before[-1]) + 1 if before.size else 0
    last = centre + int(after[0]) - 1 if after.size else log.size - 1
    return span._replace(first=first, last=max(last, first))


def find_crossing(t: np.ndarray, excess: np.ndarray, value: float, after: int) -> float:
    """Return the first time after an index at which the excess risk is at most `value`.

    The time is interpolated in the logarithm of the risk; `after` is the index.
    """
    below = np.flatnonzero(excess[after:] <= value)
    if not below.size:
        return np.inf
    here = after + int(below[0])
    if here == 0 or excess[here - 1] <= value:
        return float(t[here])
    # the risk falls exponentially between saved times
    share = np.log(excess[here - 1] / value) / np.log(excess[here - 1] / excess[here])
    return float(t[here - 1] + share * (t[here] - t[here - 1]))


def _find_phase_times(t: np.ndarray, excess: np.ndarray, span: RunPlateau) -> dict[str, np.ndarray]:
    """Return the times at which each phase of a run begins and ends; phases that were not seen have NaN."""
    edges = np.array([t[0], t[span.first], *4 * [np.nan]])
    if np.isfinite(span.half):
        last = find_crossing(t, excess, TAIL_START * span.level, span.last)
        edges[2:4] = t[span.last], span.half
        edges[4:] = (last, t[-1]) if np.isfinite(last) else np.nan
    return {"begin": edges[:-1], "end": edges[1:]}


def _choose_signal(kinds: dict[str, np.ndarray], spans: list[RunPlateau | None]) -> str:
    """Return the signal to fit: "differences" if they grow 1.5 times as much on the plateaus, else "cosines".

    The differences are those of the cosines with fixed directions between students.
    """
    gain = {}
    for name in ("cosines", "differences"):
        if name in kinds:
            pairs = [(kinds[name][run, span.first], kinds[name][run, span.last]) for run, span in enumerate(spans) if span]
            logs = [np.log(last / first) for first, last in pairs if first > 0 and last > 0]
            gain[name] = float(np.median(logs)) if logs else 0.0
    return "differences" if gain.get("differences", 0.0) > max(1.5 * gain["cosines"], 0.5) else "cosines"


def _build_dataset(dataset: xr.Dataset, rows: list[dict], attributes: dict) -> xr.Dataset:
    """Build the dataset of phases over runs, from one dict of results per run."""
    empty = np.full(len(PHASES), np.nan)
    variables: dict = {name: (("run", "phase"), np.array([row.get(name, empty) for row in rows])) for name in ("begin", "end")}
    for name in ("outcome", "tail_law"):
        variables[name] = ("run", np.array([row.get(name, "") for row in rows]))
    rates = [name for rate in ("growth", "decay", "tail_rate", "tail_exponent") for name in (rate, f"{rate}_error")]
    for name in ("level", *rates):
        variables[name] = ("run", np.array([row.get(name, np.nan) for row in rows]))
    return xr.Dataset(variables, {"run": dataset.run.values, "phase": list(PHASES)}, origin_attributes(dataset) | attributes)
