"""The explorer's page: how soon a curve comes after a slider's move, pieces a second, and memory over many moves.

    python benchmarks/explorer.py --moves 200

It starts a server, and asks it as the page does, at d = 10^6. Times are from the message to the first piece of a curve.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from websockets.sync.client import connect

SETTING = {"preset": "phase_retrieval", "d": 10**6, "t_max": 120, "runs": 16}


def resident(process: int) -> float:
    """The resident memory of a process, in MiB."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text(encoding="ascii"))
    return int(found[1]) / 1024 if found else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moves", type=int, default=200)
    moves = parser.parse_args().moves
    command = [sys.executable, "-m", "sgdlimits", "explore", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = re.search(r"http://\S+", server.stdout.readline())[0]
            with connect(address.replace("http", "ws") + "socket", origin=address.rstrip("/"), max_size=None) as page:
                follow(page, moves)
        finally:
            server.terminate()


def follow(page, moves: int) -> None:
    job, process, waits, memory = 0, 0, {"any": [], "chain": []}, []

    def ask(lr: float) -> float:
        nonlocal job
        job += 1
        page.send(json.dumps({"kind": "run", "job": job, "settings": [{**SETTING, "parameters": {"lr": lr}}]}))
        return time.perf_counter()

    def answer() -> dict:
        while True:
            message = json.loads(page.recv())
            if message.get("job") in (job, None):
                return message

    begin = ask(0.05)
    while (message := answer())["kind"] != "done":
        process = message.get("process") or process
    print(f"cold: finished after {time.perf_counter() - begin:.1f} s, {resident(process):.0f} MiB")

    begin, stamps = ask(0.051), []
    while (message := answer())["kind"] != "done":
        if message["kind"] == "piece" and message["level"] == "chain":
            stamps.append(time.perf_counter())
    print(f"warm: {(len(stamps) - 1) / (stamps[-1] - stamps[0]):.1f} pieces of the chain a second")

    for move in range(moves):
        begin, seen = ask(0.04 + 0.0001 * move), set()
        while "chain" not in seen:
            message = answer()
            if message["kind"] == "piece":
                for name in {"any"} - seen:
                    waits[name].append(time.perf_counter() - begin)
                if message["level"] == "chain":
                    waits["chain"].append(time.perf_counter() - begin)
                seen |= {"any", message["level"]}
        memory.append(resident(process))
    for name, each in waits.items():
        print(
            f"first curve, {name}: median {np.median(each):.2f} s, 95 % {np.quantile(each, 0.95):.2f} s, most {max(each):.2f} s"
        )
    print(f"memory: {memory[0]:.0f} MiB at first, {memory[len(memory) // 2]:.0f} half-way, {memory[-1]:.0f} at the end")


if __name__ == "__main__":
    main()
