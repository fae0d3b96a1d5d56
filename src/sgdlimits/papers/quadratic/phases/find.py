"""Where a run's plateau is, and the phases before and after it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from sgdlimits.analysis.origin import origin
from sgdlimits.domain import checked
from sgdlimits.errors import BadInput, check_share
from sgdlimits.level.base import DIVERGED
from sgdlimits.papers.quadratic.phases.rates import decay_rate, growth_rate, noise_sizes, signals, tail
from sgdlimits.papers.quadratic.phases.result import PHASES, Phases, expected
from sgdlimits.run.schema import check_form

LEAST = 1 / 3
"""A plateau lasts at least this share of the time that the fall then takes; an exponential decay lasts 6 % in the band."""
HIGH = 0.1
"""A run that ends on a flat stretch above this share of its first excess risk is on a plateau, and has learnt below it."""
TAIL = 0.1
"""The tail begins where this share of the plateau's excess risk is left."""
NOISES, WIDEST = 3.0, 3.0
"""The band is at least so many standard deviations of the risk's fluctuations, and at most so many times the one asked for."""


class Span(NamedTuple):
    """A plateau: its first and last index, its excess risk, and when the risk has fallen by the share (infinite if never)."""

    first: int
    last: int
    level: float
    half: float


@checked(band=check_share)
def phases(dataset: xr.Dataset, *, band: float = 0.02, fall: float = 0.5, floor: float | None = None) -> Phases:
    r"""Find norm learning, plateau, escape, descent and tail in each run, with the rates at which things grow and decay there.

    The plateau is the longest stretch of time on which the excess risk stays within the band around a level, and after which it
    falls by the share `fall`, provided that the stretch lasts at least a third as long as that fall takes. Norm learning is
    what comes before it; the escape is the fall from the band to the share, the descent goes on to a tenth of the level, and
    the tail is the rest.

    Save enough times: some tens on the plateau. Of several plateaus the longest is reported. docs/phases.md explains the
    choices.

    Parameters
    ----------
    dataset : of `simulate`, any problem and level with a risk and overlaps with fixed directions
    band : relative half-width of the band; it is widened, at most three times, to three standard deviations of the risk's
        fluctuations between saved times
    fall : the share of the plateau's excess risk that is lost at the end of the escape
    floor : the risk above which it is in excess; the problem's floor unless given. Where learning ends above that, give where
        it ends, such as the smallest risk in the dataset

    Returns
    -------
    `Phases`, whose `data` is a Dataset over `run`:

    - `outcome`: "left", a plateau was found and left; "stays", the run ends on one; "none"; or "diverged"
    - `begin`, `end` (run, phase): times of the phases, NaN where they were not seen
    - `level`: the population risk on the plateau
    - `growth`, `growth_error`: rate of :math:`\log|C|` on the plateau, where :math:`C_{jr} = M_{jr}/\sqrt{Q_{jj}}` are the
      cosines with the fixed directions, or, if these grow less there, what distinguishes students: C minus its mean over
      students. The attribute `signal` says which
    - `decay`, `decay_error`: of the cosines between students, where they fall by a factor of two or more
    - `tail_law`: "exponential" or "algebraic", whichever line is straighter, or ""; with `tail_rate` or `tail_exponent` and
      their errors

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
        raise BadInput(f"the dataset has {t.size} saved times, and phases need three. Save more, such as save=200.")
    if floor >= dataset.risk.values[:, 0].max():
        raise BadInput(f"floor must be below the risk at the start; got {floor:g}. Leave it out for the problem's own.")
    runs = [_observed(dataset, run, floor) for run in range(dataset.sizes["run"])]
    spans = [_plateau(t[:seen], excess, band, fall) if seen else None for seen, excess in runs]
    kinds = signals(dataset)
    signal = _best_signal(kinds, spans)
    noise, noise_between = noise_sizes(dataset)
    rows = []
    for run, ((seen, excess), span) in enumerate(zip(runs, spans, strict=True)):
        row: dict[str, Any] = {
            "outcome": DIVERGED if not seen else "none" if span is None else "left" if np.isfinite(span.half) else "stays"
        }
        if span is not None:
            row |= _times(t[:seen], excess, span)
            row |= {"level": span.level + floor}
            inside = slice(span.first, span.last + 1)
            row |= growth_rate(t[inside], kinds[signal][run, inside], left=row["outcome"] == "left", noise=noise)
            if "students" in kinds:
                row |= decay_rate(t[inside], kinds["students"][run, inside], noise=noise_between)
        if seen and row["outcome"] != "stays":
            level, since = (excess[0], 0.0) if span is None else (span.level, span.half)
            row |= tail(t[:seen], excess, TAIL * level, since)
        rows.append(row)
    about = {"signal": signal, "band": band, "fall": fall, "floor": float(floor)}
    return Phases(_table(dataset, rows, about), expected(dataset))


def _observed(dataset: xr.Dataset, run: int, floor: float) -> tuple[int, np.ndarray]:
    """How many saved times the run was seen at, 0 if it diverged, and its excess risk there."""
    if dataset.status.values[run] == DIVERGED:
        return 0, np.empty(0)
    seen = int((dataset.t.values <= dataset.t_end.values[run] * (1 + 1e-12)).sum())
    excess = dataset.risk.values[run, :seen] - floor
    return seen, np.maximum(excess, np.finfo(float).tiny)


def _plateau(t: np.ndarray, excess: np.ndarray, band: float, fall: float) -> Span | None:
    """The longest flat stretch that is left, or else one at which the run ends."""
    if t.size < 3:
        return None
    log = np.log(excess)
    noise = np.median(np.abs(np.diff(log, 2))) / (0.6745 * np.sqrt(6))
    half_width = float(np.clip(NOISES * noise, band, WIDEST * band))
    ends = _reach(log, 2 * half_width)
    length = t[ends] - t
    for first in np.argsort(-length, kind="stable")[: (length > 0).sum()]:
        last = int(ends[first])
        middle = (t >= t[first] + length[first] / 4) & (t <= t[last] - length[first] / 4)
        level = float(np.median(excess[middle if middle.any() else slice(first, last + 1)]))
        half = crossing(t, excess, (1 - fall) * level, last)
        if np.isfinite(half) and length[first] >= LEAST * (half - t[last]):
            return _grown(log, Span(int(first), last, level, half), half_width)
    first = int(length.argmax())
    level = float(np.median(excess[first:]))
    if ends[first] < t.size - 1 or length[first] < LEAST * t[-1] or level < HIGH * excess[0]:
        return None
    return _grown(log, Span(first, t.size - 1, level, np.inf), half_width)


def _reach(log: np.ndarray, width: float) -> np.ndarray:
    """For each index the last one up to which the values differ by at most the width."""
    ends = np.empty(log.size, int)
    for first in range(log.size):
        rest = log[first:]
        apart = np.maximum.accumulate(rest) - np.minimum.accumulate(rest) > width
        ends[first] = first + (apart.argmax() - 1 if apart.any() else rest.size - 1)
    return ends


def _grown(log: np.ndarray, span: Span, half_width: float) -> Span:
    """The same plateau from where the risk comes into the band around its level to where it leaves it."""
    outside = np.abs(log - np.log(span.level)) > half_width
    centre = (span.first + span.last) // 2
    before, after = np.flatnonzero(outside[:centre]), np.flatnonzero(outside[centre:])
    first = int(before[-1]) + 1 if before.size else 0
    last = centre + int(after[0]) - 1 if after.size else log.size - 1
    return span._replace(first=first, last=max(last, first))


def crossing(t: np.ndarray, excess: np.ndarray, value: float, after: int) -> float:
    """The first time after an index at which the excess risk is at most a value, between saved times by its logarithm."""
    below = np.flatnonzero(excess[after:] <= value)
    if not below.size:
        return np.inf
    here = after + int(below[0])
    if here == 0 or excess[here - 1] <= value:
        return float(t[here])
    share = np.log(excess[here - 1] / value) / np.log(excess[here - 1] / excess[here])
    return float(t[here - 1] + share * (t[here] - t[here - 1]))


def _times(t: np.ndarray, excess: np.ndarray, span: Span) -> dict[str, np.ndarray]:
    """When each phase begins and ends; NaN where that was not seen."""
    edges = np.array([t[0], t[span.first], *4 * [np.nan]])
    if np.isfinite(span.half):
        last = crossing(t, excess, TAIL * span.level, span.last)
        edges[2:4] = t[span.last], span.half
        edges[4:] = (last, t[-1]) if np.isfinite(last) else np.nan
    return {"begin": edges[:-1], "end": edges[1:]}


def _best_signal(kinds: dict[str, np.ndarray], spans: list[Span | None]) -> str:
    """The cosines, unless what distinguishes students grows more on the plateaus by half."""
    gain = {}
    for name in ("cosines", "differences"):
        if name in kinds:
            pairs = [(kinds[name][run, span.first], kinds[name][run, span.last]) for run, span in enumerate(spans) if span]
            logs = [np.log(last / first) for first, last in pairs if first > 0 and last > 0]
            gain[name] = float(np.median(logs)) if logs else 0.0
    return "differences" if gain.get("differences", 0.0) > max(1.5 * gain["cosines"], 0.5) else "cosines"


def _table(dataset: xr.Dataset, rows: list[dict], about: dict) -> xr.Dataset:
    empty = np.full(len(PHASES), np.nan)
    variables: dict = {name: (("run", "phase"), np.array([row.get(name, empty) for row in rows])) for name in ("begin", "end")}
    for name in ("outcome", "tail_law"):
        variables[name] = ("run", np.array([row.get(name, "") for row in rows]))
    rates = [name for rate in ("growth", "decay", "tail_rate", "tail_exponent") for name in (rate, f"{rate}_error")]
    for name in ("level", *rates):
        variables[name] = ("run", np.array([row.get(name, np.nan) for row in rows]))
    return xr.Dataset(variables, {"run": dataset.run.values, "phase": list(PHASES)}, origin(dataset) | about)
