"""Cost of schedules: an optimisation of two controls, and scheduled chains against unscheduled ones, in CPU seconds.

python benchmarks/schedules.py            # about two minutes of one core
"""

from __future__ import annotations

import time

import numpy as np

import sgdlimits as sl

PIECES, T_MAX, ROUNDS = 50, 60.0, 5
STEPS = sl.Steps([10.0, 20.0, 40.0], [0.4, 0.3, 0.2, 0.1])
COSINE = sl.Cosine(0.4, 0.1, 50.0)
CHAINS = {
    "p = k = 1, sphere": (lambda lr: sl.presets.phase_retrieval(lr=lr, noise=0.1), 0.05, 3000, 1024),
    "p = 4, k = 2, erf": (lambda lr: sl.presets.committee(4, 2, lr=lr, noise=0.1), 0.3, 1000, 512),
    "p = 20, k = 1, square": (lambda lr: sl.presets.phase_retrieval(20, lr=lr, noise=0.1), 0.1, 1000, 128),
}
"""Problem for a learning rate, the rate, d and number of runs of each chain that is timed."""


def time_optimise() -> None:
    """Print gradients and CPU seconds of the search for the best rate and noise of a committee, cold and warm."""
    make = lambda lr, noise: sl.presets.committee(2, 2, "erf", lr=lr, noise=noise)
    start = sl.FixedInit(np.array([[0.3, 0.1], [0.1, 0.2]]))
    controls = {"lr": sl.Control(PIECES, 0.0, 4.0), "noise": sl.Control(PIECES, 0.05, 0.5)}
    for word in ("cold", "warm"):
        begin = time.process_time()
        best = sl.optimise(make, start, T_MAX, controls, progress=False)
        seconds = time.process_time() - begin
        print(f"optimise, {PIECES} pieces, lr and noise, {word}: {best.evaluations} gradients, {seconds:.1f} CPU s")
    print(best)


def time_chains() -> None:
    """Print the CPU time of scheduled chains relative to that of unscheduled ones, which take turns."""
    for name, (make, lr, d, runs) in CHAINS.items():
        kinds = {"number": lr, "steps": STEPS * (lr / 0.4), "cosine": COSINE * (lr / 0.4)}
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        for turn in range(ROUNDS + 1):
            for kind, rate in kinds.items():
                begin = time.process_time()
                data = sl.simulate(
                    make(rate), sl.Chain(d), sl.RandomInit(d), t_max=T_MAX, runs=runs, save=2, kernel="lanes", progress=False
                )
                if turn:  # the first turn compiles
                    seconds[kind].append(time.process_time() - begin)
        least = {kind: min(each) for kind, each in seconds.items()}
        shares = ", ".join(f"{kind} {least['number'] / value:.2f}" for kind, value in least.items() if kind != "number")
        count = d * T_MAX * runs / least["number"] / 1e6
        print(f"{name}: {count:.1f} M steps a CPU second on {data.attrs['kernel']}; speed with a schedule, relative: {shares}")


if __name__ == "__main__":
    time_optimise()
    time_chains()
