"""What a replica-step of the chain costs against p, k, the runs and d, with fitted exponents: a table, JSON and a figure.

CPU time of this process on one core, the kernels in turns, the best of several windows: trust ratios more than figures.

    python benchmarks/cost.py --json docs/images/cost.json --plot docs/images/cost.svg
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable

import numpy as np
from kernels import measure

import sgdlimits as sl

RUNS, KERNELS = 256, ("xla", "lanes", "lanes:f32")


def committee(p: int, k: int) -> sl.ProjectionProblem:
    return sl.presets.committee(p, k, "erf", lr=0.5)


AXES: dict[str, tuple[list[int], Callable]] = {
    "units p": ([1, 2, 4, 8, 16], lambda n: (sl.presets.phase_retrieval(n, lr=0.1 * n), 3000, RUNS)),
    "teachers k": ([1, 2, 4, 8, 16], lambda n: (committee(2, n), 3000, RUNS)),
    "runs": ([1, 8, 64, 512, 4096], lambda n: (sl.presets.phase_retrieval(1, lr=0.1), 3000, n)),
    "dimension d": ([10**2, 10**4, 10**6, 10**9], lambda n: (sl.presets.phase_retrieval(1, lr=0.1), n, RUNS)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter windows")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to a file")
    parser.add_argument("--plot", metavar="FILE", help="also draw them")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    window, turns = (0.05, 2) if arguments.quick else (0.3, 4)
    figures: dict = {"machine": platform.processor() or platform.machine(), "nanoseconds": {}}
    for axis, (values, case) in AXES.items():
        rows = figures["nanoseconds"][axis] = {name: {} for name in KERNELS}
        for value in values:
            for name, found in measure(*case(value), window, turns, KERNELS).items():
                if name in rows:
                    rows[name][value] = 1e3 / found["M steps/s"]
        for name, row in rows.items():
            cells = "".join(f"{row[value]:10.3g}" if value in row else f"{'':10}" for value in values)
            print(f"{axis:12} {name:10} {cells}   exponent {exponent(row):5.2f}", flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(figures, file, indent=1)
    if arguments.plot:
        draw(figures["nanoseconds"], arguments.plot)


def exponent(row: dict) -> float:
    """Of a power through all points."""
    return float(np.polyfit(np.log([float(value) for value in row]), np.log(list(row.values())), 1)[0])


def draw(figures: dict, path: str) -> None:
    import matplotlib.pyplot as plt

    with plt.rc_context(sl.plot.PAPER):
        figure, axes = plt.subplots(1, len(figures), figsize=(11, 2.9), sharey=True, layout="constrained")
        for ax, (axis, rows) in zip(axes, figures.items(), strict=True):
            for name, row in rows.items():
                ax.loglog([float(value) for value in row], list(row.values()), "o-", markersize=3, label=name)
            ax.set_xlabel(axis)
        axes[0].set_ylabel("nanoseconds a replica-step")
        axes[0].legend()
        figure.savefig(path)
        plt.close(figure)


if __name__ == "__main__":
    main()
