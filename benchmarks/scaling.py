"""Times and errors of scaling laws: CPU seconds of one process after start-up, and errors of binned spectra.

    python benchmarks/scaling.py          # about a minute of CPU time on one core

The first call of each kind compiles and is not counted.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import sgdlimits as sl
from sgdlimits.papers.scaling import theory
from sgdlimits.papers.scaling.figures import scaling_exponents, scaling_schedule


def cpu_seconds(fn: Callable[[], Any]) -> tuple[float, float]:
    """Return CPU and wall seconds of the second call of a function."""
    fn()
    before, wall = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    fn()
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used, time.perf_counter() - wall


def trillion_steps() -> None:
    """Compute 10^12 steps at d = 10^9 in 80 blocks, with a schedule of some 80 pieces."""
    d, T = 10**9, 1e12
    spectrum = sl.spectrum.power_law(d, 1.5, blocks=80)
    left = scaling_schedule.piece_ends(T, 15)
    rates = 0.1 * d * (left[1:] + left[:-1]) / 2 / T
    lr = sl.Steps((T - left[1:-1]) / d, rates)
    theory.excess_risk(theory.problem(spectrum, 2.5, sl.OnePassSGD(lr), 0.25), d, np.array([T]))


def million_rates() -> None:
    """Compute 10^6 steps with a rate each, in 60 blocks."""
    d = 10**6
    spectrum = sl.spectrum.power_law(d, 1.5, blocks=60)
    rate = sl.OnePassSGD(sl.Linear([0.0, 1.0], [0.1 * d, 0.0]))
    theory.excess_risk(theory.problem(spectrum, 2.5, rate, 0.25), d, np.array([1e6]))


def plane() -> None:
    """Measure the plane of 400 exponents after 10^12 steps."""
    ratios = np.linspace(0.1, 2.0, scaling_exponents.FULL_SIZE.points)
    for b in np.linspace(1.1, 3.0, scaling_exponents.FULL_SIZE.points):
        scaling_exponents.measure(float(b), ratios, scaling_exponents.FULL_SIZE)


def main() -> None:
    for name, fn in (
        ("10^12 steps at d = 10^9, 80 blocks, 80 pieces", trillion_steps),
        ("10^6 steps with a rate each, 60 blocks", million_rates),
    ):
        print("{}: {:.2f} CPU s, {:.2f} s".format(name, *cpu_seconds(fn)), flush=True)
    before = time.process_time()
    plane()
    print(f"400 exponents after 10^12 steps: {time.process_time() - before:.0f} CPU s", flush=True)
    for d, exponent in ((20000, 1.2), (20000, 1.4), (10**6, 1.5), (10**9, 1.5)):
        errors = [f"{sl.spectrum.power_law(d, exponent, B).error:.1e} at B = {B}" for B in (30, 48, 80, 120)]
        print(f"binning error, d = {d:.0e}, j^-{exponent}: {', '.join(errors)}", flush=True)


if __name__ == "__main__":
    main()
