"""CPU seconds and peak memory of SGD over a reused dataset by the exact chain: for several n, and for d = 10^4 and 10^9.

python benchmarks/finite_data.py             # 100,000 steps
python benchmarks/finite_data.py 20000       # fewer
"""

from __future__ import annotations

import resource
import sys

import sgdlimits as sl


def usage() -> tuple[float, float]:
    """Return the CPU seconds of this process, and its peak memory in MiB."""
    now = resource.getrusage(resource.RUSAGE_SELF)
    return now.ru_utime + now.ru_stime, now.ru_maxrss / 1024


def main(steps: int) -> None:
    print(f"erf committee, p = 2, {steps} steps of one sample; CPU seconds with and without compilation, peak MiB so far")
    for n, d, runs in ((100, 10**9, 1), (1000, 10**4, 1), (1000, 10**9, 1), (1000, 10**9, 64), (4000, 10**9, 1)):
        problem = sl.presets.committee(2, 1, "erf", lr=1.0, noise=0.1).replace(data=sl.Reused(n, "shuffled"))
        seconds = []
        for seed in (0, 1):
            before = usage()[0]
            sl.simulate(problem, sl.Chain(d), sl.FixedInit(0.3), t_max=steps / d, runs=runs, save=2, seed=seed, progress=False)
            seconds.append(usage()[0] - before)
        print(f"n = {n:5d}  d = {d:.0e}  runs = {runs:3d}: {seconds[0]:6.2f} {seconds[1]:6.2f} {usage()[1]:8.0f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
