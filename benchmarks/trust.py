"""Whether `trust` is right: "the mean of runs is within 1 % of the ODE" for 100 random problems.

    python benchmarks/trust.py [problems]

A claim is right or wrong where the mean of the exact chain at that dimension decides by more than three standard errors, and
undecided elsewhere.
"""

from __future__ import annotations

import sys
from collections import Counter

import jax
import numpy as np

import sgdlimits as sl

SHARE, TIMES, STEPS = 0.01, 6, 4e6


def draw(kind: int, rng: np.random.Generator) -> sl.ProjectionProblem:
    """A problem of one of five kinds with random numbers."""
    lr, noise = np.exp(rng.uniform(np.log(0.1), np.log(0.8))), rng.choice([0.0, 0.1, 0.5])
    match kind:
        case 0:
            return sl.presets.phase_retrieval(lr=lr / 8, noise=noise)
        case 1:
            return sl.presets.phase_retrieval(width=2, lr=lr / 4, noise=noise)
        case 2:
            return sl.presets.quadratic_network(2, 2, lr=lr / 20, noise=noise)
        case 3:
            return sl.presets.committee(1, 1, "erf", lr=3 * lr, noise=noise)
    return sl.presets.binary_mixture(snr=np.exp(rng.uniform(0, 2)), ridge=rng.uniform(0, 0.3), lr=2 * lr)


def distance(problem: sl.ProjectionProblem, start: sl.Overlaps, d: int, t_max: float, seed: int) -> tuple[float, float]:
    """Bounds of three standard errors on the largest relative distance of the chain's mean from the ODE."""
    runs, free = int(np.clip(STEPS / (d * t_max), 1500, 20_000)), np.flatnonzero(problem.coordinates.moves(start))
    path = sl.expansion(problem, start, t_max, save=TIMES)
    chain = sl.simulate(problem, sl.Chain(d), start, t_max=t_max, runs=runs, seed=seed, save=TIMES, progress=False)
    low = high = 0.0
    for i in range(1, TIMES):
        now, ode = chain.isel(t=i), path.isel(t=i)
        x = np.asarray(jax.vmap(problem.vector)(sl.Overlaps(now.a.values, now.M.values, now.Q.values)))[:, free]
        x, at = np.column_stack([x, now.risk.values]), np.append(ode.ode.values, float(ode.risk))
        size = np.append(path["size"].values, float(ode.risk))
        off, error = np.abs(x.mean(0) - at) / size, 3 * x.std(0, ddof=1) / np.sqrt(runs) / size
        low, high = max(low, float((off - error).max())), max(high, float((off + error).max()))
    return low, high


def main(count: int = 100) -> None:
    rng = np.random.default_rng(0)
    claims = {True: Counter[str](), False: Counter[str]()}
    for i in range(count):
        problem = draw(i % 5, rng)
        d, t_max = int(np.exp(rng.uniform(np.log(10), np.log(1000)))), float(rng.uniform(1, 8))
        start = (
            sl.RandomInit(d).one(problem, seed=i) if rng.random() < 0.5 else sl.FixedInit(rng.uniform(0.1, 0.6)).one(problem)
        )
        said = sl.trust(problem, start, d, t_max)
        low, high = distance(problem, start, d, t_max, seed=i)
        claim = said.within(SHARE)
        near, far = high <= SHARE, low > SHARE
        word = "undecided" if not (near or far) else "right" if claim == near else "WRONG"
        claims[claim][word] += 1
        says = f"fails at {said.fails:.2f}" if said.fails is not None else f"{said.mean:.3%}"
        found = f"chain {low:.3%} .. {high:.3%}  {word}"
        print(f"{i:3d} {problem.name:<18} d {d:5d} t {t_max:.2f}  says {says:<14} {found}")
    print(f"mean within 1 %: {dict(claims[True])}; not within: {dict(claims[False])}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
