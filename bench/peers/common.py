"""What the peers' scripts share: inputs by formula, rounds, and the lines they print.

A script lists its entries with --list, measures them by itself (--rounds, --seconds, --threads, --only), or is led by
`distribute-bench --peers`, which starts it with --serve for one entry and asks for one round at a time: so ours and
theirs are measured in turn. Between its rounds it is stopped, with all that it has started.
"""

import argparse
import ctypes
import importlib.metadata
import itertools
import json
import subprocess
import sys
import time

import numpy as np

# The work. bench/src/work/ has the same figures.
MLP = [(784, 512), (512, 256), (256, 10)]
MLP_BATCH = 128
ROWS, WIDTH, IDS = 100_000, 32, 8
TOP = [(IDS * WIDTH, 128), (128, 1)]
RECOMMENDER_BATCH = 1024
ZIPF_ROWS, ZIPF_BATCH = 10_000_000, 4096
BATCHES = 16
RATE = 0.01
# Losses are compared at rates that change them in as many steps.
LOSS_STEPS = 50
LOSS_RATE = {"mlp": 0.1, "recommender": 1.0}
INPUT_BATCH = 256


# ---- Inputs by formula: both sides compute the same bits, so no file goes between them.


def noise(stream, count):
    """24 random bits for each of `count` numbers of a stream."""
    x = np.arange(count, dtype=np.uint32) + np.uint32(stream * 0x9E3779B9 & 0xFFFFFFFF)
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x7FEB352D)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x846CA68B)
    x ^= x >> np.uint32(16)
    return x >> np.uint32(8)


def unit(stream, count):
    """Floats in [0, 1)."""
    return noise(stream, count).astype(np.float32) * np.float32(2.0**-24)


def weights(layers):
    """A weight (out, in) and a bias (out) for each layer, within 1/sqrt(in)."""
    out = []
    for k, (width, height) in enumerate(layers):
        scale = np.float32(1.0 / np.sqrt(width))
        draw = lambda stream, count: (unit(stream, count) * np.float32(2) - np.float32(1)) * scale
        out.append((draw(2 * k, width * height).reshape(height, width), draw(2 * k + 1, height)))
    return out


def table():
    """The recommender's table (rows, width), within one half."""
    return (unit(10, ROWS * WIDTH) - np.float32(0.5)).reshape(ROWS, WIDTH)


def mlp_batch(number):
    """Images (128, 784) whose label lights up ten pixels, and labels (128)."""
    images = unit(100 + number, MLP_BATCH * 784).reshape(MLP_BATCH, 784)
    labels = (noise(200 + number, MLP_BATCH) % 10).astype(np.int64)
    for image, label in zip(images, labels):
        image[label * 10 : label * 10 + 10] += np.float32(1)
    return images, labels


def recommender_batch(number):
    """Ids (1024, 8), and targets (1024, 1): whether the first id is in the table's first half."""
    ids = (noise(300 + number, RECOMMENDER_BATCH * IDS) % ROWS).astype(np.int64).reshape(RECOMMENDER_BATCH, IDS)
    return ids, (ids[:, :1] < ROWS // 2).astype(np.float32)


def zipf_batch(number):
    """Ids (4096, 8) of a table of ten million rows, row k with a probability of about 1/k, and targets (4096, 1)."""
    drawn = np.power(float(ZIPF_ROWS), noise(300 + number, ZIPF_BATCH * IDS) * 2.0**-24)
    ids = np.minimum(drawn.astype(np.int64) - 1, ZIPF_ROWS - 1).reshape(ZIPF_BATCH, IDS)
    return ids, (ids[:, :1] % 2).astype(np.float32)


def products(name):
    """The factors of all matrix products of a step on the whole batch, as the layers' operands lie in memory."""
    layers, rows = (MLP, MLP_BATCH) if name == "mlp" else (TOP, RECOMMENDER_BATCH)
    pairs = []
    for k, (width, height) in enumerate(layers):
        x, gradient = np.ones((rows, width), np.float32), np.ones((rows, height), np.float32)
        w = np.ones((height, width), np.float32)
        pairs += [(x, w.T), (gradient.T, x)]
        if k > 0 or name == "recommender":  # the gradient of the input: an image needs none, the rows of a table do
            pairs.append((gradient, w))
    return pairs


# The all-reduces of two processes: names as in the figures, and bytes of one vector of f32.
SUMS = {
    "64B": 64,
    **{f"{n}KiB": n << 10 for n in [1, 4, 16, 64, 256]},
    **{f"{n}MiB": n << 20 for n in [1, 4, 16, 64]},
}


# ---- Entries: a figure measured in one way.


def repeated(call, finish=lambda result: result):
    """A function that calls n times and finishes the last result: for libraries that only then have computed it."""

    def repeat(n):
        for _ in range(n):
            result = call()
        return finish(result)

    return repeat


def numbered(step):
    """A call of a step on the next batch."""
    numbers = itertools.count()
    return lambda: step(next(numbers))


class Entry:
    """`make()` prepares and gives `repeat(n)`, which does the work n times; `per` units of it are one call."""

    def __init__(self, figure, unit, peer, make, per=1):
        self.figure, self.unit, self.peer, self.make, self.per = figure, unit, peer, make, per
        self.repeat, self.each = None, None
        self.between_hosts = False

    def prepare(self):
        """All that needs no quiet machine, once: importing, making, tracing, compiling, first pages."""
        if self.repeat is None:
            self.repeat = self.make()
            self.repeat(3)

    def round(self, seconds):
        """One round of about so many seconds: a value, and what else the line has."""
        self.prepare()
        if self.each is None:
            self.each = self._time(2)
            self._time(max(1, int(seconds / 2 / self.each)))
        calls = max(1, int(seconds / self.each))
        before = sent() if self.between_hosts else 0
        self.each = self._time(calls)
        more = {"sent": (sent() - before) / calls / self.per} if self.between_hosts else {}
        each = self.each / self.per
        return (1 / each if self.unit.endswith("/s") else each * 1e6), more

    def _time(self, calls):
        start = time.perf_counter()
        self.repeat(calls)
        return (time.perf_counter() - start) / calls


class Losses(Entry):
    """`make()` gives a function that trains LOSS_STEPS steps from the formula's weights and returns the losses."""

    def prepare(self):
        pass

    def round(self, seconds):
        losses = [float(loss) for loss in self.make()()]
        return losses[-1], {"losses": losses}


class Fresh(Entry):
    """Measured in a new process each time: `work` names the entry that it makes and runs."""

    def __init__(self, figure, unit, peer, work, script):
        super().__init__(figure, unit, peer, None)
        self.work, self.script = work, script

    def prepare(self):
        pass

    def round(self, seconds):
        start = time.perf_counter()
        command = [sys.executable, self.script, "--only", self.work, "--peer", self.peer, "--once", self.unit]
        child = subprocess.Popen(command, stdout=subprocess.PIPE)
        line = child.stdout.readline()
        first = time.perf_counter() - start
        child.wait()
        if not line:
            raise RuntimeError(f"{command} printed nothing")
        return (first * 1e3 if self.unit == "ms" else float(line)), {}


# ---- Two hosts, which are network namespaces of this machine: `distribute-bench --link` starts rank 0 on the first.

DEVICE = "link0"  # bench/src/workers/link/commands.rs has the same name


def addresses(given):
    """Of the hosts of ranks 0 and 1: both this machine's, unless there are two."""
    hosts = (given.hosts or "127.0.0.1,127.0.0.1").split(",")
    return [host.split("@")[0] for host in hosts]


def on_second(given, command):
    """A command of a script, to be run on rank 1's host: in the namespace of the process that keeps it."""
    if not given.hosts:
        return command
    keeper = given.hosts.split(",")[1].split("@")[1]
    return ["nsenter", f"--net=/proc/{keeper}/ns/net", "--", *command, "--hosts", given.hosts]


def sent():
    """Bytes that this host has sent to others, with the headers of packets."""
    with open("/proc/self/net/dev") as counters:
        devices = [line.split(":") for line in counters if ":" in line]
    return sum(int(counts.split()[8]) for name, counts in devices if name.strip() != "lo")


def end_with_parent():
    """This process is killed when the one that has started it ends, however it ends. Linux alone can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, 9)


def peak(pid="self"):
    """The most memory that a process has held, in MiB."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.3, help="of one round")
    parser.add_argument("--threads", type=int, default=2, help="the cores that entries of several may use")
    parser.add_argument("--only", help="one figure")
    parser.add_argument("--peer", help="one way of measuring it")
    parser.add_argument("--list", action="store_true", help="names the entries")
    parser.add_argument("--serve", action="store_true", help="one round for each line of standard input")
    parser.add_argument("--once", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--meeting", help=argparse.SUPPRESS)
    parser.add_argument("--hosts", help=argparse.SUPPRESS)
    return parser.parse_args()


def main(given, entries, package, memory=peak, version=None):
    """What the command line asks for. `package` is the library's, which says the version unless `version()` does;
    `memory()` is the peak of all processes."""
    version = version or (lambda: importlib.metadata.version(package))
    say = lambda fields: print(json.dumps(fields), flush=True)
    chosen = [e for e in entries if given.only in (None, e.figure) and given.peer in (None, e.peer)]
    if given.list:
        for entry in chosen:
            say({"figure": entry.figure, "unit": entry.unit, "peer": entry.peer})
        return
    if not chosen:
        sys.exit(f"no entry {given.only} {given.peer}; --list names all")
    if given.once:
        repeat = chosen[0].make()
        repeat(1 if given.once == "ms" else 50)
        print(memory(), flush=True)
    elif given.serve:
        end_with_parent()
        entry = chosen[0]
        entry.between_hosts = given.hosts is not None
        entry.prepare()
        say({"figure": entry.figure, "peer": entry.peer, "version": version()})
        for line in sys.stdin:
            value, more = entry.round(float(line))
            say({"value": value, **more})
    elif len(chosen) > 1:
        # A process for each: what one leaves behind (settings of threads, collectives' keys) is not the next one's.
        for entry in chosen:
            one = ["--only", entry.figure, "--peer", entry.peer]
            subprocess.run([sys.executable, *sys.argv, *one], check=False, timeout=600)
    else:
        (entry,) = chosen
        rounds, more = [], {}
        for _ in range(given.rounds):
            value, more = entry.round(given.seconds)
            rounds.append(value)
        fields = {"figure": entry.figure, "unit": entry.unit, "value": float(np.median(rounds)), "rounds": rounds}
        say({**fields, "peer": entry.peer, "version": version(), **more})
