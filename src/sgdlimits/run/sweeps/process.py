"""Worker process of a `PoolEngine`: reads tasks from its standard input and computes their work units."""

from __future__ import annotations

import json
import os
import signal
import sys

from sgdlimits.run.sweeps.worker import attempt_units_json
from sgdlimits.settings import setup_process


def main() -> None:
    """Serve as a worker process of a sweep: read a task per line of JSON, and write a line for the outcome of each work unit.

    The process ignores Ctrl-C, which the terminal sends to it as well: its parent handles it, and closes the input.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    setup_process()
    # The pipe gets another descriptor, and descriptor 1 becomes stderr: output of a user's function would be read as JSON.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    if len(cores := json.loads(sys.argv[1])) and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    try:
        for line in sys.stdin:
            for answer in attempt_units_json(*json.loads(line)):
                answers.write(json.dumps(answer) + "\n")
    except BrokenPipeError:  # the parent has died; the file of the unit is complete
        os._exit(0)


if __name__ == "__main__":
    main()
