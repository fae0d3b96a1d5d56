"""The kernel `cuda`: billions of replica-steps a second on the GPU at hand, by the clock on the wall.

python benchmarks/gpu.py --json gpu.json
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any


def cases() -> dict:
    """Problems, dimensions, and how many steps of 10^6 runs are timed."""
    import sgdlimits as sl

    presets = sl.presets
    return {
        "p = 1": (presets.phase_retrieval(1, lr=1 / 12), 3000, 16_000),
        "p = 5": (presets.phase_retrieval(5, lr=1 / 4), 3000, 6_000),
        "p = 8, k = 4, erf": (presets.committee(8, 4, "erf", lr=0.5, noise=1e-4), 1000, 2_000),
        "p = 20": (presets.phase_retrieval(20, lr=1.0), 3000, 200),
    }


def prepared(problem, d: int, runs: int, name: str, until: Any = None) -> tuple:
    """A kernel, and a carry of many runs from 1,000 different starts, where JAX computes."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import sgdlimits as sl
    from sgdlimits.kernel.choose import choose_kernel
    from sgdlimits.kernel.random import Stream
    from sgdlimits.level.stepper import initial_carry

    engine = sl.Chain(d).make_engine(problem, sl.RandomInit(d), None)
    few = engine.process.start(engine.draw_starts(sl.RandomInit(d), Stream.from_seed(0, np.arange(1000))))
    state = jax.tree.map(lambda leaf: jnp.tile(leaf, -(-runs // 1000))[..., :runs], few)
    carry = initial_carry(engine.process, until, state)
    return choose_kernel(engine.process, until, carry, name), carry, engine.step_time


def rate(problem, d: int, runs: int, steps: int, name: str, turns: int = 3) -> float:
    """Billions of replica-steps a second, the best of a few calls."""
    import numpy as np

    from sgdlimits.kernel.base import StepRange
    from sgdlimits.kernel.random import Stream

    kernel, carry, tick = prepared(problem, d, runs, name)
    stream, best = Stream.from_seed(0, np.arange(runs)), 0.0
    kernel.advance(carry, stream.seed, stream.runs, StepRange(0, 1, 0.0, tick))
    for turn in range(turns):
        begin = time.perf_counter()
        kernel.advance(carry, stream.seed, stream.runs, StepRange(turn * steps, steps, 0.0, tick))
        best = max(best, runs * steps / (time.perf_counter() - begin) / 1e9)
    return best


def bias(d: int, runs: int) -> dict:
    """The mean change of the exit time, relative to its mean, and the error of that."""
    import numpy as np

    import sgdlimits as sl

    exits, seconds = {}, {}
    for name in ("cuda", "cuda:f32"):
        begin = time.perf_counter()
        go = {"until": sl.exits(0.9), "t_max": 400.0, "runs": runs, "save": 2, "progress": False, "kernel": name}
        found = sl.simulate(sl.presets.phase_retrieval(1, lr=1 / 12), sl.Chain(d), sl.RandomInit(d), **go)
        exits[name], seconds[name] = found.t_end.values[found.status.values == "stopped"], time.perf_counter() - begin
        if exits[name].size < runs:
            raise RuntimeError(f"{runs - exits[name].size} runs have not left")
    mean, change = exits["cuda"].mean(), exits["cuda:f32"] - exits["cuda"]
    figures = {"d": d, "runs": runs, "mean": mean, "change": change.mean() / mean}
    return {**figures, "error": change.std() / np.sqrt(runs) / mean, "largest": abs(change).max() / mean, "seconds": seconds}


def machine() -> str:
    import cupy

    return cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="also write the figures to a file")
    parser.add_argument("--runs", type=int, nargs="*", default=[10**4, 10**6])
    parser.add_argument("--bias", type=int, metavar="D", help="compare exit times in this dimension instead")
    arguments = parser.parse_args()
    figures: dict = {"machine": machine(), "cases": {}}
    print(figures["machine"])
    if arguments.bias:
        return print(bias(arguments.bias, arguments.runs[0]))
    print(f"{'G steps/s':20}" + "".join(f"{name:>12}{runs:>12,}" for name in ("cuda", "cuda:f32") for runs in arguments.runs))
    for case, (problem, d, steps) in cases().items():
        row = figures["cases"][case] = {}
        for name in ("cuda", "cuda:f32"):
            for runs in arguments.runs:
                row[f"{name}, {runs} runs"] = rate(problem, d, runs, min(steps * 10**6 // runs, 20 * steps), name)
        print(f"{case:20}" + "".join(f"{value:24.3g}" for value in row.values()), flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
