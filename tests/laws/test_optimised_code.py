"""A run is the same whatever is beside it, in code that is optimised as users have it: a process without the tests' flags."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import numpy as np
import sgdlimits as sl

D = 60
momentum = sl.presets.committee(2, 2, "erf", algorithm=sl.HeavyBall(0.5, beta=0.9))
problems = [sl.presets.phase_retrieval(3, lr=0.1), momentum]
for problem in problems:
    levels = [(sl.Chain(D), "xla"), (sl.Chain(D), "lanes"), (sl.SDE(D), None), (sl.SGD(D), None), (sl.SGD(150), None)]
    for level, kernel in levels:
        go = lambda runs, batch=None: sl.simulate(
            problem, level, sl.RandomInit(level.d), t_max=1.0, runs=runs, batch=batch, save=3, kernel=kernel, progress=False
        )
        all_runs = go(37)
        for some in (go(37, 5), go(3), go(1)):
            n = some.sizes["run"]
            for name in ("M", "Q", "risk"):
                rounding = 0.0 if some.attrs["kernel"] == "lanes" else 1e-12
                np.testing.assert_allclose(some[name], all_runs[name][:n], rtol=rounding, atol=rounding, err_msg=f"{level}")
"""


@pytest.mark.full
def test_runs_do_not_depend_on_those_beside_them():
    free = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=free, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
