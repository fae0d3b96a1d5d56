"""What a second process saves by `sgdlimits.setup_jax`: CPU time of its first simulation, import included, and of later ones.

    python benchmarks/second_process.py

Each level is simulated in four fresh processes with an empty cache folder: two without the call and two with it. The second of
each two is printed, in seconds for the first simulation and milliseconds for each of twenty more.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

LEVELS = ("ODE()", "Chain(300)", "SDE(300)", "SGD(300)")
CODE = """
import sys, time
import sgdlimits as sl
if sys.argv[2] == "yes":
    sl.setup_jax()
problem, start = sl.presets.committee(width=3, teachers=2, lr=0.5), sl.RandomInit(300)
go = lambda seed: sl.simulate(problem, eval(f"sl.{sys.argv[1]}"), start, t_max=2, runs=4, save=20, seed=seed, progress=False)
go(0)
first = time.process_time()
for seed in range(20):
    go(seed + 1)
print(first, (time.process_time() - first) / 20)
"""


def main() -> None:
    for level in LEVELS:
        for asked in ("no", "yes"):
            with tempfile.TemporaryDirectory() as folder:
                plain = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
                for _ in range(2):
                    done = subprocess.run(
                        [sys.executable, "-c", CODE, level, asked], env={**plain, "XDG_CACHE_HOME": folder},
                        capture_output=True, text=True, check=True,
                    )  # fmt: skip
            first, later = map(float, done.stdout.split())
            print(f"{level:11} setup_jax: {asked:3}  first {first:5.2f} s, then {1e3 * later:6.1f} ms", flush=True)


if __name__ == "__main__":
    main()
