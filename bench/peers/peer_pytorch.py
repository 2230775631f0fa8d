"""PyTorch on the same work: eager on one thread and several, compiled, and DistributedDataParallel over two processes
with gloo."""

import datetime
import os
import subprocess
import sys
import tempfile

import common
import inputs_pytorch
from common import Entry, Fresh, Losses, numbered, repeated

GIVEN = common.arguments()
THREADS = f"PyTorch, {GIVEN.threads} threads"
ALONE = "PyTorch, 1 thread"
COMPILED = f"PyTorch, compiled, {GIVEN.threads} threads"
DDP = "PyTorch, DDP with gloo"
GLOO = "PyTorch, gloo"


def library(threads):
    import torch

    torch.set_num_threads(threads)
    return torch


# ---- The second process of DDP: rank 0 starts it, and tells it how often to repeat.

CHILD = None


def group(torch, entry):
    """Joins both processes; rank 0 has started rank 1 with the same entry."""
    global CHILD
    import torch.distributed as dist

    if GIVEN.hosts:
        os.environ["GLOO_SOCKET_IFNAME"] = common.DEVICE
    meeting = GIVEN.meeting or os.path.join(tempfile.mkdtemp(), "meeting")
    if GIVEN.rank == 0:
        command = [sys.executable, __file__, "--only", entry[0], "--peer", entry[1], "--rank", "1", "--meeting", meeting]
        CHILD = subprocess.Popen(common.on_second(GIVEN, command), stdout=subprocess.DEVNULL)
    else:
        common.end_with_parent()  # which is rank 0
    # Both processes are stopped while others are measured, which is no reason to give up.
    patience = datetime.timedelta(days=1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=GIVEN.rank, world_size=2, timeout=patience)
    return dist


def in_step(torch, dist, repeat):
    """Rank 0 gets a function that has rank 1 repeat, too; rank 1 stays here until rank 0 ends."""

    def led(n):
        dist.broadcast(torch.tensor([n]), 0)
        return repeat(n)

    if GIVEN.rank == 0:
        return led
    count = torch.zeros(1, dtype=torch.int64)
    while True:
        dist.broadcast(count, 0)
        repeat(int(count))


def all_reduce(entry, count):
    def make():
        torch = library(1)
        dist = group(torch, entry)
        mine = torch.zeros(count)
        return in_step(torch, dist, repeated(lambda: dist.all_reduce(mine)))

    return make


# ---- The models.


def model(torch, name, sparse):
    nn = torch.nn

    class Recommender(nn.Module):
        def __init__(self):
            super().__init__()
            rows = common.ZIPF_ROWS if name == "zipf" else common.ROWS
            weight = torch.zeros(rows, common.WIDTH) if name == "zipf" else torch.from_numpy(common.table())
            self.table = nn.Embedding(rows, common.WIDTH, sparse=sparse, _weight=weight)
            self.top = stack(common.TOP)

        def forward(self, ids):
            return self.top(self.table(ids).flatten(1))

    def stack(layers):
        parts = []
        for (width, height), (w, b) in zip(layers, common.weights(layers)):
            layer = nn.Linear(width, height)
            with torch.no_grad():
                layer.weight.copy_(torch.from_numpy(w))
                layer.bias.copy_(torch.from_numpy(b))
            parts += [layer, nn.ReLU()]
        return nn.Sequential(*parts[:-1])

    if name == "mlp":
        return stack(common.MLP), nn.CrossEntropyLoss(), common.mlp_batch
    batch = common.zipf_batch if name == "zipf" else common.recommender_batch
    return Recommender(), nn.BCEWithLogitsLoss(), batch


def training(torch, name, sparse, rate, wrap=lambda m: m, half=None, compiled=False):
    """A function that makes a step on batch number n and gives its loss."""
    net, criterion, batch = model(torch, name, sparse)
    net = wrap(net)
    forward = lambda inputs, labels: criterion(net(inputs), labels)
    if compiled:
        forward = torch.compile(forward)  # and its backward with it
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)

    def piece(array):
        if half is not None:
            array = array[half * len(array) // 2 : (half + 1) * len(array) // 2]
        return torch.from_numpy(array.copy())

    batches = [tuple(map(piece, batch(n))) for n in range(common.BATCHES)]

    def step(n):
        inputs, labels = batches[n % common.BATCHES]
        optimizer.zero_grad()
        loss = forward(inputs, labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


def trained(step):
    return repeated(numbered(step), lambda loss: loss.item())


def steps(name, sparse, threads, compiled=False):
    return lambda: trained(training(library(threads), name, sparse, common.RATE, compiled=compiled))


def products(name):
    """All products of a step, one after another, into memory that is there."""

    def make():
        torch = library(GIVEN.threads)
        pairs = [tuple(map(torch.from_numpy, pair)) for pair in common.products(name)]
        made = [a @ b for a, b in pairs]

        def step():
            for (a, b), out in zip(pairs, made):
                torch.mm(a, b, out=out)

        return repeated(step)

    return make


def ddp(torch, name, entry, rate, hook=None):
    """DDP on half of each batch. `hook` names what compresses the gradients."""
    dist = group(torch, entry)

    def wrap(net):
        wrapped = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
        if hook == "bf16":
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

            wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)
        elif hook == "lowrank-4":
            from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
            wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return wrapped

    return dist, training(torch, name, name != "mlp", rate, wrap, GIVEN.rank)


def ddp_steps(name, entry, hook=None):
    def make():
        torch = library(1)
        dist, step = ddp(torch, name, entry, common.RATE, hook)
        return in_step(torch, dist, trained(step))

    return make


def losses(name, sparse, compiled=False):
    def make():
        step = training(library(GIVEN.threads), name, sparse, common.LOSS_RATE[name], compiled=compiled)
        return lambda: [step(n).item() for n in range(common.LOSS_STEPS)]

    return make


def entries():
    for size, count in [("4KiB", 1 << 10), ("1MiB", 1 << 18), ("64MiB", 1 << 24)]:
        figure = f"all_reduce_2_{size}"
        peer = "PyTorch, gloo, 2 processes"
        yield Entry(figure, "µs", peer, all_reduce((figure, peer), count))
    for size, number in common.SUMS.items():
        figure = f"all_reduce_2p_tcp_{size}"
        yield Entry(figure, "µs", GLOO, all_reduce((figure, GLOO), number // 4))
    # Figures of `distribute-bench --link` alone, by the names of our options.
    for hook in ["bf16", "lowrank-4"]:
        figure = f"mlp_{hook}_2_processes"
        yield Entry(figure, "steps/s", DDP, ddp_steps("mlp", (figure, DDP), hook))
    for saving in ["", "_tables", "_tables-4"]:
        figure = f"zipf{saving}_2_processes"
        yield Entry(figure, "steps/s", DDP, ddp_steps("zipf", (figure, DDP)))
    figure = "recommender_tables_2_processes"
    yield Entry(figure, "steps/s", DDP, ddp_steps("recommender", (figure, DDP)))
    for name in ["mlp", "recommender"]:
        processes = f"{name}_2_processes"
        yield Entry(processes, "steps/s", DDP, ddp_steps(name, (processes, DDP)))
        one, two = f"{name}_1_replicas", f"{name}_2_replicas"
        for sparse in [False, True] if name == "recommender" else [False]:
            mark = {"mlp": "", "recommender": ", sparse" if sparse else ", dense"}[name]
            yield Entry(one, "steps/s", ALONE + mark, steps(name, sparse, 1))
            yield Entry(two, "steps/s", THREADS + mark, steps(name, sparse, GIVEN.threads))
        yield Entry(two, "steps/s", COMPILED + mark, steps(name, sparse, GIVEN.threads, compiled=True))
        yield Entry(f"{name}_products", "µs", THREADS, products(name))
        yield Entry(two, "steps/s", DDP, ddp_steps(name, (two, DDP)))
        yield Fresh(f"memory_{name}", "MiB", THREADS + mark, two, __file__)
        yield Fresh(f"memory_{name}", "MiB", DDP, two, __file__)
        yield Losses(f"losses_{name}", "", THREADS + mark, losses(name, sparse))
        yield Losses(f"losses_{name}", "", COMPILED + mark, losses(name, sparse, compiled=True))
    yield from inputs_pytorch.entries(library, GIVEN.threads)
    yield Fresh("start_to_first_step", "ms", THREADS, "mlp_2_replicas", __file__)
    yield Fresh("start_to_first_step", "ms", DDP, "mlp_2_replicas", __file__)


def memory():
    return common.peak() + (common.peak(CHILD.pid) if CHILD else 0)


if __name__ == "__main__":
    common.main(GIVEN, list(entries()), "torch", memory)
    sys.stdout.flush()
    os._exit(0)  # rank 1 is in a broadcast that will not come; it ends with this process
