"""Trains an embedding of PyTorch on parameter servers, which processes of the command `distribute` are.

    python embedding.py --distribute target/release/distribute --kill

A hidden vector for each id decides whether a pair of ids belongs together; the embedding learns it from pairs. The rows
of the embedding are on the servers, which apply Adagrad; PyTorch computes the loss and the gradient of the rows of a
batch. With --kill, one server is killed (SIGKILL) in the middle and started again with its folder. At the end, the number
of acknowledged pushes of each id is compared with the number that the servers have applied.
"""

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time

import distribute_client as dc
import numpy as np
import torch

IDS, WIDTH, BATCH = 2000, 16, 256


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--distribute", default="distribute", help="the command")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--kill", action="store_true", help="kill a server in the middle")
    return parser.parse_args()


class Servers:
    """Two servers in processes, with folders."""

    def __init__(self, command, folder):
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self.addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
        for one in sockets:
            one.close()
        self.command = [command, "serve", "--servers", ",".join(self.addresses), "--folder", folder]
        self.processes = [self.start(index) for index in range(2)]

    def start(self, index):
        return subprocess.Popen([*self.command, "--index", str(index)], stderr=subprocess.DEVNULL)

    def restart(self, index):
        self.processes[index].kill()
        self.processes[index].wait()
        self.processes[index] = self.start(index)

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()


def batches(steps):
    """Pairs of ids, and whether their hidden vectors point into one direction."""
    random = np.random.default_rng(1)
    hidden = random.standard_normal((IDS, 4))
    for _ in range(steps):
        pairs = random.integers(0, IDS, (BATCH, 2))
        yield pairs, ((hidden[pairs[:, 0]] * hidden[pairs[:, 1]]).sum(1) > 0).astype(np.float32)


def train(servers, arguments):
    with dc.connect(servers.addresses) as connected:
        start = dc.Initializer.normal(0, 0.3, seed=1)
        words = connected.variable("words", (IDS, WIDTH), initializer=start, rule=dc.Rule.adagrad(), shards=2)
        pushed = connected.variable("pushed", (IDS, 1), dtype="float64", rule=dc.Rule.sgd(), shards=2)
        acknowledged, rows, losses = np.zeros(IDS), 0, []
        begun = time.perf_counter()
        for step, (pairs, labels) in enumerate(batches(arguments.steps)):
            if arguments.kill and step == arguments.steps // 2:
                servers.restart(0)
            ids, positions = np.unique(pairs, return_inverse=True)
            embedding = torch.from_numpy(words.look_up(ids)).requires_grad_()
            left, right = embedding[torch.from_numpy(positions.reshape(pairs.shape))].unbind(1)
            scores = (left * right).sum(1)
            entropy = torch.nn.functional.binary_cross_entropy_with_logits
            # The sum, because Adagrad's accumulators begin at 0.1: gradients of a mean would be small next to that.
            loss = entropy(scores, torch.from_numpy(labels), reduction="sum")
            loss.backward()
            words.push_rows(ids, embedding.grad.numpy(), 0.3)
            pushed.push_rows(ids, np.full((len(ids), 1), -1.0), 1.0)
            acknowledged[ids] += 1
            rows += 2 * len(ids)
            losses.append(loss.item() / BATCH)
        seconds = time.perf_counter() - begun
        lost = int((pushed.pull()[:, 0] != acknowledged).sum())
        return {
            "loss_first": round(float(np.mean(losses[:20])), 4),
            "loss_last": round(float(np.mean(losses[-20:])), 4),
            "acknowledged_pushes": int(acknowledged.sum()),
            "ids_with_another_count": lost,
            "rows_per_second": int(rows / seconds),
        }


def main():
    arguments = parse()
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        servers = Servers(arguments.distribute, folder)
        try:
            result = train(servers, arguments)
        finally:
            servers.end()
    print(json.dumps(result))
    sys.exit(result["ids_with_another_count"] > 0 or result["loss_last"] > result["loss_first"] * 0.8)


if __name__ == "__main__":
    main()
