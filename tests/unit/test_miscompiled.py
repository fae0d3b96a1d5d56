"""Compiled code gives the numbers of its program, optimised as users have it: in a process without the tests' flags."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import sgdlimits as sl
sl.Overlaps  # sets JAX up
from sgdlimits._miscompiled import is_miscompiled
assert not is_miscompiled()
"""


def test_sums_for_a_batch_of_one_are_compiled_right():
    """jaxlib 0.10.2 fails here if its fusion pass is left on."""
    free = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=free, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
