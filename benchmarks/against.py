"""CPU time of plain SGD in this checkout over that in an earlier one: `python benchmarks/against.py v0.1.0`.

Two processes, one of each, take turns on one core; the ratio is that of their best times. The earlier version must run with
the packages that are installed, and know the presets below. JAX is set up in both as the command line does (`setup_jax`), which
importing version 0.2 did: without asynchronous dispatch, whose threads would count.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
TURNS = 7
CASES = {
    "SGD, d = 128, p = 1": "sl.presets.phase_retrieval(lr=0.08), sl.SGD(128), sl.RandomInit(128), runs=64, t_max=8",
    "SGD, d = 10^4, p = 1": "sl.presets.phase_retrieval(lr=0.08), sl.SGD(10000), sl.RandomInit(10000), runs=8, t_max=0.2",
    "SGD, d = 1000, p = 1": "sl.presets.phase_retrieval(lr=0.08), sl.SGD(1000), sl.RandomInit(1000), runs=16, t_max=4",
    "SGD, d = 1000, erf 8/4": "sl.presets.committee(width=8, teachers=4), sl.SGD(1000), sl.RandomInit(1000), runs=16, t_max=1",
    "chain, p = 1": "sl.presets.phase_retrieval(lr=0.08), sl.Chain(3000), sl.RandomInit(3000), runs=256, t_max=20",
    "chain, erf 8/4": "sl.presets.committee(width=8, teachers=4), sl.Chain(3000), sl.RandomInit(3000), runs=256, t_max=0.5",
    "chain, p = 5": "sl.presets.phase_retrieval(width=5, lr=0.05), sl.Chain(3000), sl.RandomInit(3000), runs=128, t_max=2",
    "chain, p = 20": "sl.presets.phase_retrieval(width=20, lr=0.02), sl.Chain(3000), sl.RandomInit(3000), runs=64, t_max=0.5",
    "chain, classes": "sl.presets.binary_mixture(10.0, 0.1), sl.Chain(3000), sl.RandomInit(3000), runs=64, t_max=1",
}  # fmt: skip
CHILD = """
import resource, sys, warnings
import sgdlimits as sl

warnings.simplefilter("ignore")
getattr(sl, "setup_jax", lambda: None)()
for line in sys.stdin:  # a turn: the case, run until its first call has compiled
    call = lambda: eval(f"sl.simulate({line.strip()}, progress=False)")
    before = resource.getrusage(resource.RUSAGE_SELF)
    call()
    after = resource.getrusage(resource.RUSAGE_SELF)
    print(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="the earlier version: a tag, branch or commit")
    revision = parser.parse_args().revision
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:1]))
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "earlier")
        subprocess.run(["git", "worktree", "add", "-q", "--detach", str(tree), revision], cwd=HERE, check=True)
        try:
            compare([Version(tree / "src"), Version(HERE / "src")])
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=HERE, check=True)


class Version:
    """A process with one version of the package, which is asked for CPU seconds of calls."""

    def __init__(self, source: Path) -> None:
        there = {**os.environ, "PYTHONPATH": str(source)}
        self.process = subprocess.Popen([sys.executable, "-c", CHILD], stdin=-1, stdout=-1, stderr=-3, text=True, env=there)

    def seconds(self, case: str) -> float:
        assert self.process.stdin
        assert self.process.stdout
        print(case, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())


def compare(versions: list[Version]) -> None:
    print(f"{'':26}{'earlier':>9}{'now':>9}{'ratio':>8}   CPU s, best of {TURNS} turns")
    for name, case in CASES.items():
        times = [[version.seconds(case) for version in versions] for _ in range(TURNS + 1)][1:]  # the first compiled
        earlier, now = map(min, zip(*times, strict=True))
        print(f"{name:26}{earlier:9.3f}{now:9.3f}{now / earlier:8.2f}", flush=True)
    for version in versions:
        version.process.communicate()


if __name__ == "__main__":
    main()
