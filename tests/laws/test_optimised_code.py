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
second = sl.ProjectionProblem(
    target=sl.Target(sl.QuadraticReadout([[1.0, 0.2], [0.2, -0.5]]), 2, noise=0.05, gram=[[1.0, 0.3], [0.3, 0.7]]),
    network=sl.TwoLayer(3, "square"),
    loss=sl.SquaredLoss(),
    algorithm=sl.OnePassSGD(lr=0.9, lr_second=0.3, sphere=True, batch=3),
)
lanes = [(sl.Chain(D), "lanes"), (sl.SDE(D), "lanes")]
cases = [
    (sl.presets.phase_retrieval(3, lr=0.1), [(sl.Chain(D), "xla"), *lanes, (sl.SGD(D), None)]),
    (momentum, [(sl.SDE(D), "xla"), *lanes, (sl.SGD(150), None)]),
    (second, [(sl.SGD(600), None), (sl.SGD(4100), None)]),
]
for problem, levels in cases:
    for level, kernel in levels:
        t = min(60, 10**5 // level.d) / level.d
        go = lambda runs, batch=None: sl.simulate(
            problem, level, sl.RandomInit(level.d), t_max=t, runs=runs, batch=batch, save=3, kernel=kernel, progress=False
        )
        all_runs = go(37)
        for some in (go(37, 7), go(1)):
            n = some.sizes["run"]
            for name in ("M", "Q", "a", "risk"):
                rounding = 1e-12 if kernel == "xla" else 0.0  # there the place of a run among others may change last bits
                np.testing.assert_allclose(some[name], all_runs[name][:n], rtol=rounding, atol=rounding, err_msg=f"{level}")
"""


@pytest.mark.full
def test_runs_do_not_depend_on_those_beside_them():
    free = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=free, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
