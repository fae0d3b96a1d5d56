"""The explorer's page: how soon curves come after a slider's move, pieces a second, and memory over many moves.

    python benchmarks/explorer.py --moves 200

It starts a server, and asks it as the page does, at d = 10^6. Times are from the message to the first piece of a curve. Beside
them stand the processor's time that the page's process took, and the machine's load: others on it make all of it later.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from websockets.sync.client import connect

SETTING = {"preset": "phase_retrieval", "d": 10**6, "t_max": 120, "runs": 16}
LEVELS = ("ode", "sde", "chain")


def resident(process: int) -> float:
    """The resident memory of a process, in MiB."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text(encoding="ascii"))
    return int(found[1]) / 1024 if found else float("nan")


def worked(process: int) -> float:
    """The processor's time that a process has taken, in seconds."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def spread(each: list[float]) -> str:
    return f"median {np.median(each):.2f} s, 95 % {np.quantile(each, 0.95):.2f} s, most {max(each):.2f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moves", type=int, default=200)
    moves = parser.parse_args().moves
    command = [sys.executable, "-m", "sgdlimits", "explore", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            base, _, query = re.search(r"http://\S+", server.stdout.readline())[0].partition("?")
            with connect(f"{base.replace('http', 'ws')}socket?{query}", origin=base.rstrip("/"), max_size=None) as page:
                follow(page, moves)
        finally:
            server.terminate()


def follow(page, moves: int) -> None:
    job, process, begin, clock, waits, memory = 0, 0, 0.0, 0.0, {level: [] for level in LEVELS}, []

    def ask(lr: float) -> None:
        nonlocal job, begin, clock
        job, begin, clock = job + 1, time.perf_counter(), worked(process) if process else 0.0
        page.send(json.dumps({"kind": "run", "job": job, "settings": [{**SETTING, "parameters": {"lr": lr}}]}))

    def answer() -> dict:
        while True:
            message = json.loads(page.recv())
            if message.get("job") in (job, None):
                return message

    def taken() -> str:
        spent, load = worked(process) - clock, os.getloadavg()[0]
        return f"{time.perf_counter() - begin:.1f} s, {spent:.1f} s of the processor, load {load:.1f}"

    ask(0.05)
    while (message := answer())["kind"] != "done":
        process = message.get("process") or process
    print(f"cold: finished after {taken()}, {resident(process):.0f} MiB")

    ask(0.051)
    stamps = []
    while (message := answer())["kind"] != "done":
        if message["kind"] == "piece" and message["level"] == "chain":
            stamps.append(time.perf_counter())
    print(f"warm: finished after {taken()}")
    print(f"pieces of the chain: {(len(stamps) - 1) / (stamps[-1] - stamps[0]):.1f} a second, {spread(np.diff(stamps))} apart")

    for move in range(moves):
        ask(0.04 + 0.0001 * move)
        seen: set[str] = set()
        while not seen.issuperset(LEVELS):
            message = answer()
            if message["kind"] == "piece" and message["level"] not in seen:
                waits[message["level"]].append(time.perf_counter() - begin)
                seen.add(message["level"])
        memory.append(resident(process))
    for level, each in waits.items():
        print(f"first curve, {level}: {spread(each)}")
    print(f"the last move: {taken()}")
    print(f"memory: {memory[0]:.0f} MiB at first, {memory[len(memory) // 2]:.0f} half-way, {memory[-1]:.0f} at the end")


if __name__ == "__main__":
    main()
