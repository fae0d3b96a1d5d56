"""What one waits for in short calls: an ODE beside its compiled flow, and saved times; CPU milliseconds.

Each figure is the smallest of several calls after one that compiles, all in one process, so that ratios hold on a busy machine.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from functools import partial

import jax
import numpy as np

import sgdlimits as sl

ODES = {
    "phase retrieval": (sl.presets.phase_retrieval(lr=0.05, noise=0.1), 60.0),
    "erf, 8 units, 4 teachers": (sl.presets.committee(8, 4, lr=1.0), 50.0),
    "20 squares, 4 teachers": (sl.presets.quadratic_network(20, 4, lr=0.05), 20.0),
    "two classes": (sl.presets.binary_mixture(snr=5.0, ridge=0.05), 20.0),
    "tanh, 4 units, 2 teachers": (sl.presets.committee(4, 2, activation="tanh", lr=1.0), 20.0),
}


def main() -> None:
    print("one run of the ODE: 200 saved times, 2 saved times, and the compiled flow at the same times and tolerance")
    for name, (problem, t_max) in ODES.items():
        start = sl.RandomInit(1000).one(problem, seed=1)
        flow = jax.jit(partial(sl.flow, problem, t=np.linspace(0, t_max, 200)[1:]))
        solve = partial(sl.simulate, problem, sl.ODE(), start, t_max=t_max, progress=False)
        row = [*(milliseconds(partial(solve, save=save)) for save in (200, 2)), milliseconds(partial(wait_for, flow, start))]
        print(f"  {name:26}", *(f"{each:8.1f}" for each in row))
    print("the chain of phase retrieval at d = 3000 to t = 2: 2, 200 and 2000 saved times")
    problem = sl.presets.phase_retrieval(lr=0.05, noise=0.1)
    for runs in (1, 64):
        go = partial(sl.simulate, problem, sl.Chain(3000), sl.RandomInit(3000), t_max=2, runs=runs, progress=False)
        print(f"  {runs} runs".ljust(28), *(f"{milliseconds(partial(go, save=save)):8.1f}" for save in (2, 200, 2000)))


def wait_for(function: Callable, argument: object) -> None:
    """Call a compiled function and wait for its result."""
    jax.block_until_ready(function(argument))


def milliseconds(call: Callable[[], object], repeats: int = 5) -> float:
    """Smallest CPU time of a call, after one that compiles."""
    call()
    spent = []
    for _ in range(repeats):
        begin = cpu()
        call()
        spent.append(cpu() - begin)
    return 1e3 * min(spent)


def cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
