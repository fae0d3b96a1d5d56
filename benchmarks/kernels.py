"""The kernels beside each other: replica-steps a second and core, with and without a condition, and what compiling costs.

CPU time (user and system) of this process on one core, in turns, the best of several windows: trust ratios more than figures.

    python benchmarks/kernels.py --json kernels.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import time


def cases() -> dict:
    import sgdlimits as sl

    presets = sl.presets
    return {
        "p = 1": (presets.phase_retrieval(1, lr=1 / 12), 3000),
        "p = 5": (presets.phase_retrieval(5, lr=1 / 4), 3000),
        "p = 8, k = 4, erf": (presets.committee(8, 4, "erf", lr=0.5, noise=1e-4), 1000),
        "p = 20": (presets.phase_retrieval(20, lr=1.0), 3000),
        "two classes, relu": (presets.binary_mixture(snr=10.0, ridge=0.1), 10_000),
        "spiked tensor": (presets.spiked_tensor(), 1000),
    }


def cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(problem, d: int, runs: int, window: float, turns: int, kernels: tuple[str, ...] = ("xla", "lanes")) -> dict:
    """Millions of replica-steps a second for each kernel, and the seconds that its first call took."""
    import numpy as np

    import sgdlimits as sl
    from sgdlimits.errors import BadInput
    from sgdlimits.kernel.base import StepRange
    from sgdlimits.kernel.choose import choose_kernel
    from sgdlimits.kernel.random import Stream
    from sgdlimits.level.stepper import initial_carry

    engine = sl.Chain(d).make_engine(problem, sl.RandomInit(d), None)
    process, stream = engine.process, Stream.from_seed(0, np.arange(runs))
    span = lambda steps: StepRange(*(np.asarray(number) for number in (0, steps, 0.0, engine.step_time)))
    rows: dict = {}
    for name in kernels:
        for until in (None, sl.exits(0.9)):
            begin = cpu()
            carry = initial_carry(process, until, process.start(engine.draw_starts(sl.RandomInit(d), stream)))
            middle = cpu()
            try:
                kernel = choose_kernel(process, until, carry, name)
            except BadInput:
                continue

            def call(steps: int, kernel=kernel, carry=carry) -> None:
                if getattr(kernel, "bounds", None):  # which it would know from the same steps before
                    kernel.bounds.known = kernel.bounds.known[:0]
                kernel.advance(carry, stream.seed, stream.runs, span(steps))

            call(1)
            rows[name if until is None else f"{name}, until"] = {
                "call": call,
                "compile": cpu() - middle,
                "steps": process.block,
                "rate": 0.0,
                "start": middle - begin,
            }
    for turn in range(turns + 1):
        for row in rows.values():
            begin = cpu()
            row["call"](row["steps"])
            spent = max(cpu() - begin, 1e-4)
            if turn:
                row["rate"] = max(row["rate"], runs * row["steps"] / spent / 1e6)
            row["steps"] = max(process.block, int(row["steps"] * min(window / spent, 30.0)))
    return {name: {"M steps/s": row["rate"], "compile s": row["compile"]} for name, row in rows.items()}


def whole_runs(problem, d: int, threshold: float, t_max: float = 60.0, runs: int = 256, turns: int = 3) -> float:
    """The share of the rate that simulations from start to end keep with a condition: the best of turns, after one of each."""
    import sgdlimits as sl

    best = {None: 0.0, threshold: 0.0}
    for turn in range(turns + 1):
        for watched in best:
            until = None if watched is None else sl.exits(watched)
            begin = cpu()
            go = sl.simulate(
                problem, sl.Chain(d), sl.RandomInit(d), t_max=t_max, runs=runs, until=until, save=2, progress=False
            )
            if turn:
                best[watched] = max(best[watched], float(go.t_end.sum()) / (cpu() - begin))
    return best[threshold] / best[None]


def two_threads(problem, d: int, runs: int) -> float:
    """How many times faster all cores are than one, by the clock on the wall."""
    import numpy as np

    import sgdlimits as sl
    from sgdlimits.kernel.base import StepRange
    from sgdlimits.kernel.choose import choose_kernel
    from sgdlimits.kernel.random import Stream
    from sgdlimits.level.stepper import initial_carry

    engine, stream = sl.Chain(d).make_engine(problem, sl.RandomInit(d), None), Stream.from_seed(0, np.arange(runs))
    carry = initial_carry(engine.process, None, engine.process.start(engine.draw_starts(sl.RandomInit(d), stream)))
    kernel, every, best = choose_kernel(engine.process, None, carry, "lanes"), os.sched_getaffinity(0), {}
    for _ in range(4):
        for count, cores in ((1, {min(every)}), (len(every), every)):
            os.sched_setaffinity(0, cores)
            begin = time.perf_counter()
            kernel.advance(
                carry, stream.seed, stream.runs, StepRange(*(np.asarray(n) for n in (0, 20_000, 0.0, engine.step_time)))
            )
            best[count] = min(best.get(count, np.inf), time.perf_counter() - begin)
    return best[1] / best[len(every)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter windows")
    parser.add_argument("--only", help="the case whose name begins like this")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to a file")
    arguments = parser.parse_args()
    every = os.sched_getaffinity(0)
    chosen = {name: case for name, case in cases().items() if name.startswith(arguments.only or "")}
    figures: dict = {"machine": platform.processor() or platform.machine(), "cases": {}}
    os.sched_setaffinity(0, {max(every)})
    head = ("", "xla", "lanes", "ratio", "xla, until", "lanes, until", "kept", "compile xla", "lanes", "lanes, until")
    print(("{:20}" + "{:>13}" * 9).format(*head))
    for name, (problem, d) in chosen.items():
        rows = figures["cases"][name] = measure(problem, d, 256, 0.1 if arguments.quick else 0.4, 2 if arguments.quick else 5)
        rate = lambda key, rows=rows: rows.get(key, {}).get("M steps/s", float("nan"))
        spent = lambda key, rows=rows: rows.get(key, {}).get("compile s", float("nan"))
        cells = (
            rate("xla"), rate("lanes"), rate("lanes") / rate("xla"), rate("xla, until"), rate("lanes, until"),
            rate("lanes, until") / rate("lanes"), spent("xla"), spent("lanes"), spent("lanes, until"),
        )  # fmt: skip
        print(f"{name:20}" + "".join(f"{cell:13.3g}" for cell in cells), flush=True)
    if (name := "two classes, relu") in chosen:
        whole = figures["kept by whole runs of two classes"] = {
            f"d = {d}, exits({threshold})": whole_runs(chosen[name][0], d, threshold)
            for d in (3000, 10_000, 30_000)
            for threshold in (0.5, 0.9)
        }
        print(f"{name}, whole runs keep", ", ".join(f"{share:.2f} ({what})" for what, share in whole.items()))
    if len(every) > 1:
        os.sched_setaffinity(0, every)
        figures["all cores over one"] = two_threads(*next(iter(chosen.values())), 2048)
        print(f"all cores over one: {figures['all cores over one']:.2f}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
