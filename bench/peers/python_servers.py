"""Rows of a table on two parameter servers from Python: our client beside TensorFlow's ParameterServerStrategy, by turns.

    python python_servers.py --distribute target/release/distribute --tensorflow /tmp/peers/bin/python

This Python needs the packages distribute-client and numpy, the other one tensorflow. A table has a million rows of 32
numbers, and a batch 8192 ids from numpy. Rows come to numpy, and gradients of rows from numpy are applied by plain
gradient descent. Each round of ours is followed by one of TensorFlow. Whoever is not measured is stopped.
"""

import argparse
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import time

import distribute_client as dc
import numpy as np

ROWS, WIDTH, BATCH = 1_000_000, 32, 8192
HERE = pathlib.Path(__file__).parent


class Ours:
    """Two servers in processes, and this process as their client."""

    def __init__(self, command):
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
        for one in sockets:
            one.close()
        start = lambda index: subprocess.Popen(
            [command, "serve", "--servers", ",".join(addresses), "--index", str(index)], stderr=subprocess.DEVNULL
        )
        self.processes = [start(index) for index in range(2)]
        # A server that is stopped for a while is not gone: the client connects again.
        self.table = dc.connect(addresses).variable("table", (ROWS, WIDTH), rule=dc.Rule.sgd(), shards=2)
        random = np.random.default_rng(1)
        self.ids = [random.integers(0, ROWS, BATCH) for _ in range(16)]
        self.gradient = np.full((BATCH, WIDTH), 1e-4, np.float32)

    def signal(self, number):
        for process in self.processes:
            process.send_signal(number)

    def look_up(self, turn):
        assert self.table.look_up(self.ids[turn % 16]).shape == (BATCH, WIDTH)

    def push(self, turn):
        self.table.push_rows(self.ids[turn % 16], self.gradient, 0.1)

    def round(self, work, seconds):
        work(0)
        begun, turns = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            work(turns)
            turns += 1
        return turns * BATCH / (time.perf_counter() - begun) / 1e6


class TensorFlow:
    """A process that measures a round for each line with a number of seconds."""

    def __init__(self, python, figure):
        command = [python, str(HERE / "peer_tensorflow_python.py"), "--only", figure, "--serve"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL, **pipes)
        self.line()  # it is prepared

    def signal(self, number):
        os.killpg(self.process.pid, number)

    def round(self, seconds):
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        return self.line()["value"]

    def line(self):
        while not (line := self.process.stdout.readline()).startswith("{"):
            if not line:
                sys.exit(f"{self.process.args} has ended")
        return json.loads(line)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--distribute", default="distribute")
    parser.add_argument("--tensorflow", default=sys.executable, help="a Python that has tensorflow")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    given = parser.parse_args()
    ours = Ours(given.distribute)
    try:
        for name, work in (("look_up", ours.look_up), ("push", ours.push)):
            for way in ("scheduled", "direct"):
                theirs = TensorFlow(given.tensorflow, f"python_{name}_{way}")
                theirs.round(given.seconds)
                values = []
                for _ in range(given.rounds):
                    theirs.signal(signal.SIGSTOP)
                    mine = ours.round(work, given.seconds)
                    theirs.signal(signal.SIGCONT)
                    ours.signal(signal.SIGSTOP)
                    values.append((mine, theirs.round(given.seconds)))
                    ours.signal(signal.SIGCONT)
                theirs.signal(signal.SIGKILL)
                mine, other = (statistics.median(side) for side in zip(*values))
                line = {"figure": f"python_{name}", "unit": "M rows/s", "ours": round(mine, 3), "tensorflow": round(other, 3)}
                print(json.dumps({**line, "way": way, "ratio": round(mine / other, 1), "rounds": values}), flush=True)
    finally:
        ours.signal(signal.SIGKILL)


if __name__ == "__main__":
    main()
