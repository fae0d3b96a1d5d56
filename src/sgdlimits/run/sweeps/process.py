"""A process that computes units: it is told some at a time, on its standard input, until that is closed."""

from __future__ import annotations

import json
import os
import signal
import sys

from sgdlimits.run.sweeps.worker import attempts_text
from sgdlimits.settings import setup_process


def main() -> None:
    """Lines of JSON in, a line out for each unit. Ctrl-C is for the process that tells: it closes the input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    setup_process()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what users' functions print goes with the errors
    if len(cores := json.loads(sys.argv[1])) and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    try:
        for line in sys.stdin:
            for answer in attempts_text(*json.loads(line)):
                answers.write(json.dumps(answer) + "\n")
    except BrokenPipeError:  # nobody listens any more; the file is there
        os._exit(0)


if __name__ == "__main__":
    main()
