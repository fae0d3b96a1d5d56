"""Replica-steps per second of every level, beside plain loops in R^d, in one run on one core. `make bench` prints the tables.

A replica-step is one sample of one run. Times are the best of several windows, and the rows that are compared are measured in
turn, so that a busy machine slows both; trust ratios more than figures.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

WINDOW = 0.4
WIDTHS = (1, 5, 20)
DIMENSIONS = (10**3, 10**6, 10**9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, default=1, help="cores to run on (default: 1, so that figures are per core)")
    parser.add_argument("--quick", action="store_true", help="fewer cells and shorter windows")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to a file")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[: arguments.cores]))
    global WINDOW
    WINDOW = 0.1 if arguments.quick else WINDOW
    widths = (1, 5) if arguments.quick else WIDTHS

    figures = {"cores": arguments.cores, "plain loops at d = 3000, p = 1": compare_with_plain_loops()}
    figures["levels"] = levels(widths)
    figures["chain at d = 10^9 over d = 10^3"] = {p: independence_of_d(p) for p in widths}
    figures["drift"] = drifts(arguments.quick)
    figures["drift against p"] = drift_exponents(arguments.quick)
    figures["200 saves over 2"] = cost_of_saves()
    figures["chain steps that an SDE step costs"] = break_even(widths)
    figures["spectrum"] = spectra()
    figures["memory"] = memory()
    figures["start-up"] = start_up()
    show(figures)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(figures, file, indent=1)


# --- the clock ------------------------------------------------------------------------------------------------------------


def seconds_per(call: Callable[[int], object], start: int = 1) -> float:
    """Seconds for one unit of `call(n)`, best of three windows; the first call compiles and is not counted."""
    call(start)
    n, best = start, float("inf")
    while True:
        begin = time.perf_counter()
        call(n)
        spent = time.perf_counter() - begin
        if spent > WINDOW / 3:
            break
        n = int(n * min(10, max(1.5, WINDOW / max(spent, 1e-6))))
    for _ in range(3):
        begin = time.perf_counter()
        call(n)
        best = min(best, (time.perf_counter() - begin) / n)
    return best


# --- the package ----------------------------------------------------------------------------------------------------------


def stepper(level, width: int, runs: int):
    """A function that advances runs, or a few more to fill their last group, by n blocks of steps of the level's process.

    With it how many steps a block has, of all runs, and how many samples a step stands for.
    """
    import jax
    import numpy as np

    import sgdlimits as sl
    from sgdlimits.kernel.base import StepRange
    from sgdlimits.kernel.choose import choose_kernel
    from sgdlimits.kernel.random import Stream
    from sgdlimits.level.stepper import initial_carry

    problem = sl.presets.phase_retrieval(width=width, lr=0.05 * width)
    start = sl.RandomInit(level.d)
    engine = level.make_engine(problem, start, jax.tree.map(lambda leaf: leaf[0], start.sample(problem, runs=1)))
    process, size = engine.process, engine.dt or engine.step_time
    runs = -(-runs // (process.group_size or 1)) * (process.group_size or 1)
    starts = start.sample(problem, runs=runs)
    carry, stream = initial_carry(process, None, process.start(starts)), Stream.from_seed(0, np.arange(runs))
    span = lambda n: StepRange(*(np.asarray(number) for number in (0, n * process.block, 0.0, size)))
    kernel = choose_kernel(process, None, carry)
    call = lambda n: kernel.advance(carry, stream.seed, stream.runs, span(n))
    return call, process.block * runs, size * level.d


def rate(level, width: int, runs: int) -> tuple[float, float]:
    """(own steps per second, samples per second that they stand for), both times the number of runs."""
    call, steps, samples = stepper(level, width, runs)
    per_second = steps / seconds_per(call)
    return per_second, per_second * samples


def levels(widths) -> list[dict]:
    import sgdlimits as sl

    rows = []
    for width in widths:
        runs = {1: 1024, 5: 256, 20: 128}[width]
        for d in DIMENSIONS:
            for level, count in ((sl.SGD(d), max(1, 30_000 // d)), (sl.Chain(d), runs), (sl.SDE(d), 64)):
                if level.name == "sgd" and d > 10**6:
                    continue
                own, samples = rate(level, width, count)
                rows.append({"p": width, "d": d, "level": level.name, "steps": own, "samples": samples})
        rows.append({"p": width, "d": 0, "level": "ode", **ode_rate(width)})
    return rows


def ode_rate(width: int) -> dict:
    """Solutions of 64 runs to t = 20: evaluations of the drift per second and runs solved per second."""
    import numpy as np

    import sgdlimits as sl
    from sgdlimits.level import ode

    problem = sl.presets.phase_retrieval(width=width, lr=0.05 * width)
    calls = [0]
    slope = ode.Solver._slope

    def counted(self, t, flat):
        calls[0] += 1
        return slope(self, t, flat)

    ode.Solver._slope = counted
    try:
        solve = lambda n: [
            sl.simulate(problem, sl.ODE(), sl.RandomInit(3000), t_max=20, runs=64, save=np.array([20.0]), progress=False)
            for _ in range(n)
        ]
        each = seconds_per(solve)
        calls[0] = 0
        solve(1)
    finally:
        ode.Solver._slope = slope
    return {"steps": 64 * calls[0] / each, "solutions": 64 / each}


def independence_of_d(width: int) -> float:
    """Time of a chain step at d = 10^9 over that at d = 10^3, the two measured in turn, best of six."""
    import sgdlimits as sl

    runs = {1: 1024, 5: 256, 20: 128}[width]
    calls = {d: stepper(sl.Chain(d), width, runs) for d in (10**3, 10**9)}
    blocks = max(1, int(WINDOW / seconds_per(calls[10**3][0])))
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(6):
        for d, (call, steps, _) in calls.items():
            begin = time.perf_counter()
            call(blocks)
            best[d] = min(best[d], (time.perf_counter() - begin) / (blocks * steps))
    return best[10**9] / best[10**3]


def drifts(quick: bool) -> list[dict]:
    """Milliseconds of one drift by integrals over few fields and by Sobol points over all of them, measured in turn."""
    import jax

    import sgdlimits as sl

    rows = []
    for activation, p, k in (("erf", 8, 4), ("erf", 50, 5), ("relu", 6, 3), ("he3", 6, 3), ("tanh", 6, 3))[: 2 if quick else 5]:
        spent = {}
        for name, rule in (("few fields", None), ("Sobol", sl.Sobol(10))):
            problem = sl.presets.committee(p, k, activation, expectation=rule)
            stats = sl.RandomInit(1000).one(problem)
            drift = jax.jit(lambda stats, problem=problem: problem.drift(stats))
            spent[name] = 1e3 * seconds_per(
                lambda n, drift=drift, stats=stats: [jax.block_until_ready(drift(stats)) for _ in range(n)]
            )
        rows.append({"activation": activation, "p": p, "k": k, **spent})
    return rows


def cpu_seconds(call: Callable[[], object], repeats: int = 3) -> float:
    """CPU seconds of a call, best of several; the first one compiles and is not counted."""
    call()
    best = float("inf")
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_SELF)
        call()
        after = resource.getrusage(resource.RUSAGE_SELF)
        best = min(best, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return best


def drift_exponents(quick: bool) -> list[dict]:
    """CPU milliseconds of one drift of a committee with four teachers against its width, and the exponent fitted to them."""
    import jax
    import numpy as np

    import sgdlimits as sl

    rows = []
    for activation in ("erf", "relu", "tanh"):
        spent = {}
        for p in (8, 20) if quick else (8, 20, 50):
            problem = sl.presets.committee(p, 4, activation)
            stats = sl.RandomInit(1000).one(problem)
            drift = jax.jit(lambda stats, problem=problem: problem.drift(stats))
            calls = 10 if p <= 20 else 1
            some = lambda drift=drift, stats=stats, n=calls: [jax.block_until_ready(drift(stats)) for _ in range(n)]
            spent[p] = 1e3 * cpu_seconds(some) / calls
        slope = float(np.polyfit(np.log(list(spent)), np.log(list(spent.values())), 1)[0])
        rows.append({"activation": activation, "ms": spent, "exponent": slope})
    return rows


def cost_of_saves() -> float:
    """CPU time of 200 saved times over that of two, for 64 runs of the ODE measured in turn."""
    import sgdlimits as sl

    problem = sl.presets.phase_retrieval(lr=0.05)
    go = lambda save: sl.simulate(problem, sl.ODE(), sl.RandomInit(3000), t_max=60, runs=64, save=save, progress=False)
    return cpu_seconds(lambda: go(200), 5) / cpu_seconds(lambda: go(2), 5)


def break_even(widths) -> dict[int, float]:
    """How many steps of the chain cost as much as one of the SDE, by width."""
    import sgdlimits as sl

    return {p: rate(sl.Chain(3000), p, 256)[0] / rate(sl.SDE(3000), p, 256)[0] for p in widths}


def spectra() -> dict[str, float]:
    """Milliseconds of all eigenvalues of the Hessian of a quadratic network, p = 4, three teachers, measured in turn."""
    import numpy as np

    import sgdlimits as sl

    problem = sl.presets.quadratic_network(width=4, teachers=3)
    stats = sl.RandomInit(40).one(problem)
    weights = sl.landscape.Weights(np.pad(sl.landscape.coordinates(problem, stats), ((0, 0), (0, 33))))
    calls = {f"d = {d:,}": lambda d=d: sl.hessian_spectrum(problem, stats, d) for d in (50, 10**9)}
    calls["d = 40, dense"] = lambda: np.linalg.eigvalsh(sl.landscape.hessian(problem, weights).reshape(160, 160))
    return {name: 1e3 * seconds_per(lambda n, call=call: [call() for _ in range(n)]) for name, call in calls.items()}


# --- plain loops in R^d, as a researcher writes them ----------------------------------------------------------------------


def numpy_loop(d: int, width: int, lr: float) -> Callable[[int], object]:
    import numpy as np

    rng = np.random.default_rng(0)
    teacher = np.eye(1, d)[0]
    W = rng.normal(size=(width, d))
    W /= np.linalg.norm(W, axis=1, keepdims=True)

    def steps(n: int) -> None:
        nonlocal W
        for _ in range(n):
            x = rng.standard_normal(d)
            fields = W @ x
            error = (fields**2).mean() - (teacher @ x) ** 2
            W = W - (lr / d) * (2 / width) * error * fields[:, None] * x
            W /= np.linalg.norm(W, axis=1, keepdims=True)

    return steps


def jax_loop(d: int, width: int, lr: float) -> Callable[[int], object]:
    import jax
    import jax.numpy as jnp

    teacher = jnp.zeros(d).at[0].set(1.0)
    W = jax.random.normal(jax.random.key(0), (width, d))
    W = W / jnp.linalg.norm(W, axis=1, keepdims=True)

    def step(W, key):
        x = jax.random.normal(key, (d,))
        fields = W @ x
        error = (fields**2).mean() - (teacher @ x) ** 2
        W = W - (lr / d) * (2 / width) * error * fields[:, None] * x
        return W / jnp.linalg.norm(W, axis=1, keepdims=True), None

    hundred = jax.jit(lambda W, key: jax.lax.scan(step, W, jax.random.split(key, 100))[0])
    return lambda n: [jax.block_until_ready(hundred(W, jax.random.key(i))) for i in range(-(-n // 100))]


def compare_with_plain_loops() -> dict[str, float]:
    """Replica-steps per second at p = 1, d = 3000, on the sphere, the four measured in turn, best of four rounds."""
    import sgdlimits as sl

    d, lr = 3000, 0.05
    chain, chain_steps, _ = stepper(sl.Chain(d), 1, 1024)
    direct, direct_steps, _ = stepper(sl.SGD(d), 1, 10)
    loops = {
        "NumPy loop in R^d": (numpy_loop(d, 1, lr), 1),
        "JAX loop in R^d": (jax_loop(d, 1, lr), 1),
        "SGD": (direct, direct_steps),
        "Chain": (chain, chain_steps),
    }
    best = dict.fromkeys(loops, 0.0)
    for _ in range(4):
        for name, (call, steps) in loops.items():
            best[name] = max(best[name], steps / seconds_per(call, 100 if "loop" in name else 1))
    return best


STREAM = """
import sgdlimits as sl
problem, start = sl.presets.phase_retrieval(width=5, lr=0.2), sl.RandomInit(1000)
for piece in sl.stream(problem, sl.Chain(1000), start, t_max=1, runs={}, save=200):
    pass
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))  # rusage has the parent's too
"""


def memory() -> dict[str, float]:
    """The most GiB of a process that streams runs of p = 5 with 200 saved times; of one run, for what is always there."""
    spent = lambda runs: subprocess.run([sys.executable, "-c", STREAM.format(runs)], check=True, capture_output=True).stdout
    return {f"{runs:,} runs": int(spent(runs)) / 2**20 for runs in (1, 100_000)}


# --- start-up -------------------------------------------------------------------------------------------------------------


FIRST = """
import sgdlimits as sl
sl.simulate(sl.presets.phase_retrieval(lr=0.05), sl.{}, sl.RandomInit(3000), t_max=1, runs=64, progress=False)
"""


def start_up() -> dict[str, float]:
    """CPU seconds of a fresh process, best of three; cold, and where an earlier process left what it compiled."""
    commands = {"python -c pass": "pass", "import sgdlimits": "import sgdlimits as sl; sl.simulate"}
    commands |= {f"first {level.split('(')[0]}": FIRST.format(level) for level in ("Chain(3000)", "ODE()", "SDE(3000)")}
    typed = {"sgdlimits run": "run phase_retrieval --d 1000 --t-max 5 --runs 16 --out x.nc --force"}
    typed |= {"sgdlimits exit-time": "exit-time --d 3000"}
    command = "import sys; from sgdlimits.cli import main; sys.argv[1:] = {!r}.split(); main()"
    commands |= {name: command.format(words) for name, words in typed.items()}

    def spent(code: str, cache: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        environment = {**os.environ, "SGDLIMITS_CACHE": cache}
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=folder, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, code in commands.items():
            figures[f"{name}, cold"] = min(spent(code, "off") for _ in range(3))
            spent(code, folder)
            figures[f"{name}, warm"] = min(spent(code, folder) for _ in range(3))
    return figures


# --- tables ---------------------------------------------------------------------------------------------------------------


def show(figures: dict) -> None:
    print(f"\nPlain loops and levels, p = 1, d = 3000, sphere, {figures['cores']} core(s)")
    plain = figures["plain loops at d = 3000, p = 1"]
    for name, value in plain.items():
        ratio, other = value / plain["NumPy loop in R^d"], value / plain["JAX loop in R^d"]
        print(f"  {name:20s} {value:14,.0f} replica-steps/s   {ratio:8.1f} x NumPy   {other:8.1f} x JAX")
    print("\nLevels: own steps of all runs per second, and the samples per second that they stand for")
    print(f"  {'p':>3s} {'d':>11s} {'level':6s} {'steps/s':>15s} {'samples/s':>20s}")
    for row in figures["levels"]:
        d = f"{row['d']:,}" if row["d"] else "-"
        tail = f"{row['samples']:20,.0f}" if "samples" in row else f"{row['solutions']:10,.1f} solved/s"
        print(f"  {row['p']:3d} {d:>11s} {row['level']:6s} {row['steps']:15,.0f} {tail}")
    print("\nTime of a chain step at d = 10^9 over that at d = 10^3")
    for width, ratio in figures["chain at d = 10^9 over d = 10^3"].items():
        print(f"  p = {width:2d}: {ratio:.3f}")
    print("\nOne drift of a committee, milliseconds: few fields at a time, and Sobol points")
    for row in figures["drift"]:
        print(f"  {row['activation']:5s} p = {row['p']:2d}, k = {row['k']} {row['few fields']:10.2f} {row['Sobol']:10.2f}")
    print("\nOne drift of a committee with four teachers against its width, CPU milliseconds, and the exponent")
    for row in figures["drift against p"]:
        print(f"  {row['activation']:5s}", *(f"p = {p}: {ms:.2f} " for p, ms in row["ms"].items()), f"p^{row['exponent']:.1f}")
    print(f"\nODE: CPU time of 200 saved times over that of two: {figures['200 saves over 2']:.2f}")
    print("\nSteps of the chain that cost as much as a step of the SDE")
    for width, ratio in figures["chain steps that an SDE step costs"].items():
        print(f"  p = {width:2d}: {ratio:.1f}")
    print("\nSpectrum of a Hessian, milliseconds")
    for name, value in figures["spectrum"].items():
        print(f"  {name:20s} {value:10.2f}")
    print("\nMemory of a stream of runs of p = 5 with 200 saved times, GiB")
    for name, value in figures["memory"].items():
        print(f"  {name:20s} {value:10.2f}")
    print("\nStart-up, CPU seconds of a fresh process, import included")
    for name, value in figures["start-up"].items():
        print(f"  {name:24s} {value:.2f}")


if __name__ == "__main__":
    main()
