"""One unit on the sphere (phase retrieval, p = k = 1): the kernels beside what people write by hand, in one run.

NumPy's loop in R^d, the same in JAX, PyTorch's where it is installed, and a kernel in C++ (`sphere.cpp`) where there is a
compiler; then more units, beside another one (`units.cpp`). CPU time of one core, in turns, the best of several windows. And
how the cost of a chain's step grows with p, k and the number of runs, and with d, as exponents fitted to a ladder of each.

    python benchmarks/by_hand.py --json by_hand.json
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from kernels import cases, cpu, measure

D, LR, RUNS = 3000, 1 / 12, 256


def numpy_loop(d: int) -> Callable[[int], int]:
    """Steps of one run in R^d, drawn as they are needed; returns how many replica-steps were made."""
    rng, u = np.random.default_rng(0), np.ones(d) / np.sqrt(d)

    def go(steps: int) -> int:
        nonlocal u
        for _ in range(steps):
            x = rng.standard_normal(d)
            field = u @ x
            u = u - 2 * LR / d * (field**2 - x[0] ** 2) * field * x
            u /= np.sqrt(u @ u)
        return steps

    return go


def jax_loop(d: int) -> Callable[[int], int]:
    import jax
    import jax.numpy as jnp

    @jax.jit
    def run(u, key, steps):
        def one(i, u):
            x = jax.random.normal(jax.random.fold_in(key, i), (d,))
            field = u @ x
            u = u - 2 * LR / d * (field**2 - x[0] ** 2) * field * x
            return u / jnp.sqrt(u @ u)

        return jax.lax.fori_loop(0, steps, one, u)

    def go(steps: int) -> int:
        run(jnp.ones(d) / np.sqrt(d), jax.random.key(0), steps).block_until_ready()
        return steps

    return go


def torch_loop(d: int) -> Callable[[int], int] | None:
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    u = torch.ones(d, dtype=torch.float64) / d**0.5

    def go(steps: int) -> int:
        nonlocal u
        for _ in range(steps):
            x = torch.randn(d, dtype=torch.float64)
            field = u @ x
            u = u - 2 * LR / d * (field**2 - x[0] ** 2) * field * x
            u /= torch.sqrt(u @ u)
        return steps

    return go


def library(name: str, *more: str) -> Any:
    """The function of a file in C++, compiled in a folder that is gone once it is loaded; None where there is no compiler."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return None
    flags = ["-O3", "-march=native", "-ffast-math", "-fopenmp-simd", "-mprefer-vector-width=512", "-shared", "-fPIC"]
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made.so"
        subprocess.run([compiler, *flags, *more, Path(__file__).with_name(name), "-o", made, "-lm"], check=True)
        return ctypes.CDLL(str(made)).advance


def sphere_by_hand() -> Callable[[int], int] | None:
    call = library("sphere.cpp")
    if call is None:
        return None
    call.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_double, ctypes.c_double, ctypes.c_uint32]
    state = np.random.default_rng(0).normal(size=RUNS) / np.sqrt(D)

    def go(steps: int) -> int:
        call(state.ctypes.data, RUNS // 16, steps, D, LR, 0)
        return RUNS * steps

    return go


def units_by_hand(problem: Any, d: int, runs: int = RUNS) -> tuple[Callable[[int], int], Callable[[], tuple]] | None:
    """Steps of error functions, or of squares on the sphere, and a function that gives M and Q."""
    import sgdlimits as sl
    from sgdlimits.kernel.compiler.elementary import ERF_DENOMINATOR, ERF_NUMERATOR

    p, k, squares = problem.network.width, problem.target.teachers, problem.algorithm.sphere
    call = library("units.cpp", f"-DP={p}", f"-DK={k}", *["-DSQUARES"] * squares)
    if call is None:
        return None
    call.argtypes = [ctypes.c_void_p, *[ctypes.c_int64] * 2, *[ctypes.c_double] * 3, ctypes.c_uint32, ctypes.c_void_p]
    start, low = sl.RandomInit(d).sample(problem, runs=runs), np.tril_indices(p)
    M, Q = np.asarray(start.M), np.asarray(start.Q)
    factor = np.linalg.cholesky(Q - M @ M.swapaxes(1, 2))[:, low[0], low[1]]
    states = np.concatenate([M.reshape(runs, -1), factor], axis=1).reshape(runs // 16, 16, -1).swapaxes(1, 2).copy()
    erf, (lr, noise) = np.array(ERF_NUMERATOR + ERF_DENOMINATOR), map(float, (problem.algorithm.lr, problem.target.noise))

    def go(steps: int) -> int:
        call(states.ctypes.data, runs // 16, steps, d, lr, noise, 0, erf.ctypes.data)
        return runs * steps

    def overlaps() -> tuple[np.ndarray, np.ndarray]:
        rows, T = states.swapaxes(1, 2).reshape(runs, -1), np.zeros((runs, p, p))
        M, T[:, low[0], low[1]] = rows[:, : p * k].reshape(runs, p, k), rows[:, p * k :]
        return M, M @ M.swapaxes(1, 2) + T @ T.swapaxes(1, 2)

    return go, overlaps


def rates(loops: dict[str, Callable[[int], int]], window: float, turns: int) -> dict[str, float]:
    """Millions of replica-steps a second of CPU time, the best window of each, in turns."""
    best, steps = dict.fromkeys(loops, 0.0), dict.fromkeys(loops, 1)
    for turn in range(turns + 4):
        for name, go in loops.items():
            begin = cpu()
            made = go(steps[name])
            spent = max(cpu() - begin, 1e-4)
            if turn >= 4:
                best[name] = max(best[name], made / spent / 1e6)
            steps[name] = max(1, int(steps[name] * min(window / spent, 10.0)))
    return best


def ladders() -> dict[str, dict[int, tuple]]:
    """Problems and dimensions along which one thing grows."""
    import sgdlimits as sl

    presets = sl.presets
    return {
        "p": {p: (presets.phase_retrieval(p, lr=0.05 * p), 3000) for p in (2, 4, 8, 16)},
        "k": {k: (presets.committee(2, k, "erf", lr=0.5), 3000) for k in (2, 4, 8, 16)},
        "d": {d: (presets.phase_retrieval(1, lr=LR), d) for d in (10**3, 10**4, 10**5, 10**6)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter windows")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to a file")
    arguments = parser.parse_args()
    window, turns = (0.1, 2) if arguments.quick else (0.4, 5)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import sgdlimits as sl

    problem = sl.presets.phase_retrieval(1, lr=LR)
    loops = {"NumPy, R^d": numpy_loop(D), "NumPy, R^1000000": numpy_loop(10**6), "JAX, R^d": jax_loop(D)}
    loops |= {"PyTorch, R^d": torch_loop(D), "C++": sphere_by_hand()}
    best = rates({name: go for name, go in loops.items() if go is not None}, window, turns)
    kernels = measure(problem, D, RUNS, window, turns, ("xla", "lanes", "lanes:f32"))
    best |= {name: row["M steps/s"] for name, row in kernels.items() if "until" not in name}
    print(f"one unit on the sphere, d = {D}: M replica-steps a second and core")
    for name, rate in sorted(best.items(), key=lambda row: row[1]):
        print(f"{name:20}{rate:12.4g}{rate / best['NumPy, R^d']:12.4g} times NumPy in R^{D}")
    figures = {"machine": platform.processor() or platform.machine(), "M steps/s": best, "cost": {}, "units": {}}
    for name in ("p = 5", "p = 8, k = 4, erf", "p = 20"):
        case, d = cases()[name][:2]
        made, found = units_by_hand(case, d), measure(case, d, RUNS, window, turns, ("lanes", "lanes:f32"))
        row = {kernel: each["M steps/s"] for kernel, each in found.items() if "until" not in kernel}
        figures["units"][name] = row | ({} if made is None else rates({"C++": made[0]}, window, turns))
        print(f"{name:20}" + "".join(f"{kernel:>12}{rate:9.3g}" for kernel, rate in figures["units"][name].items()), flush=True)
    print("\nmicroseconds of a chain's step in lanes, and the exponent of the last three")
    for letter, ladder in ladders().items():
        cost = {n: 1 / measure(*case, RUNS, window, turns, ("lanes",))["lanes"]["M steps/s"] for n, case in ladder.items()}
        slope = np.polyfit(np.log(list(cost)[1:]), np.log(list(cost.values())[1:]), 1)[0]
        figures["cost"][letter] = {"us": cost, "exponent": slope}
        print(f"{letter}: " + ", ".join(f"{n}: {us:.3g}" for n, us in cost.items()) + f"; exponent {slope:.2f}", flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
