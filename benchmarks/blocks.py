"""Replica-steps a second and core of the chain, by the number of blocks of variances: the cost should be proportional to it.

CPU time of this process on one core; the cases take turns, and the best window of each counts. Trust ratios more than figures.

    python benchmarks/blocks.py --json blocks.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform

import numpy as np
from kernels import cpu

RUNS, D = 256, 3000


def problem(blocks: int, width: int):
    """A linear spectrum of that many eigenvalues, and one teacher; for one block inputs of one variance."""
    import sgdlimits as sl

    spectrum = sl.Spectrum(np.linspace(1.8, 0.2, blocks) if blocks > 1 else [1.0], np.full(blocks, 1 / blocks))
    return sl.ProjectionProblem(
        data=sl.inputs.gaussian(spectrum),
        target=sl.Target(sl.CommitteeReadout("erf"), teachers=1, noise=0.1),
        network=sl.TwoLayer(width, "erf"),
        loss=sl.SquaredLoss(),
        algorithm=sl.OnePassSGD(lr=0.5),
    )


def compiled(blocks: int, width: int, name: str) -> dict:
    """A kernel of the chain, compiled: a function that makes steps, and the seconds that its first call took."""
    import sgdlimits as sl
    from sgdlimits.kernel.base import StepRange
    from sgdlimits.kernel.choose import choose_kernel
    from sgdlimits.kernel.random import Stream
    from sgdlimits.level.stepper import initial_carry

    engine, stream = (
        sl.Chain(D).make_engine(problem(blocks, width), sl.RandomInit(D), None),
        Stream.from_seed(0, np.arange(RUNS)),
    )
    carry = initial_carry(engine.process, None, engine.process.start(engine.starts(sl.RandomInit(D), stream)))
    begin = cpu()
    kernel = choose_kernel(engine.process, None, carry, name)

    def call(steps: int) -> None:
        kernel.advance(carry, stream.seed, stream.runs, StepRange(*(np.asarray(n) for n in (0, steps, 0.0, engine.step_time))))

    call(1)
    return {"call": call, "compile s": cpu() - begin, "steps": 16, "M steps/s": 0.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, nargs="+", default=[1, 2, 3, 5, 10, 20, 30])
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--kernel", default="lanes")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--json", metavar="FILE", help="also write the figures to a file")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    figures: dict = {"machine": platform.processor() or platform.machine(), "cases": {}}
    print(("{:>4}{:>8}" + "{:>13}" * 3).format("p", "blocks", "M steps/s", "x blocks", "compile s"))
    for width in arguments.widths:
        rows = {blocks: compiled(blocks, width, arguments.kernel) for blocks in arguments.blocks}
        for turn in range(arguments.turns + 1):
            for row in rows.values():
                begin = cpu()
                row["call"](row["steps"])
                spent = max(cpu() - begin, 1e-4)
                row["M steps/s"] = max(row["M steps/s"], RUNS * row["steps"] / spent / 1e6) if turn else 0.0
                row["steps"] = max(16, int(row["steps"] * min(0.2 / spent, 30.0)))
        for blocks, row in rows.items():
            del row["call"], row["steps"]
            figures["cases"][f"p = {width}, {blocks} blocks"] = row
            print(f"{width:4}{blocks:8}{row['M steps/s']:13.3g}{blocks * row['M steps/s']:13.3g}{row['compile s']:13.2f}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
