"""Input pipelines of PyTorch's DataLoader, with the readers that its users have: protobuf's own parser and pyarrow."""

import common
import files
import inputs
from common import Entry
from inputs import Input

LOADER = "PyTorch, DataLoader"
WHOLE = "PyTorch, DataLoader, batches by index"


def entries(library, workers):
    """`library(threads)` is PyTorch with so many; `workers` is the number of loading processes, where they help."""

    def pipeline(loader):
        # Two threads take no less for a batch, and far more where another program wants a core.
        torch = library(1)
        made = loader(torch, workers)

        def passes():
            while True:
                yield from made

        batches = passes()

        def take(n):
            for _ in range(n):
                next(batches)

        return take, lambda: next(batches)

    kinds = [("tfrecord", records), ("csv", csv), ("shuffle", shuffled), ("map", mapped)]
    ways = [(kind, LOADER, loader) for kind, loader in kinds]
    yield Entry(f"input_range_{common.INPUT_BATCH}", "batches/s", LOADER, lambda: pipeline(numbers)[0])
    for kind, peer, loader in [*ways, ("shuffle", WHOLE, gathered)]:
        yield Input(kind, peer, lambda l=loader: pipeline(l))


def numbers(torch, workers):
    data = torch.utils.data.TensorDataset(torch.arange(1 << 20))
    return torch.utils.data.DataLoader(data, batch_size=common.INPUT_BATCH)


def ready(torch, data, workers):
    """Batches that the dataset has made: workers stay from pass to pass."""
    return torch.utils.data.DataLoader(data, batch_size=None, num_workers=workers, persistent_workers=workers > 0)


def records(torch, workers):
    """Each worker reads files of its own. Checksums in the files are not looked at, which saves time."""
    from itertools import chain

    import numpy as np
    from tfrecord.example_pb2 import Example

    def of(path):
        with open(path, "rb") as file:
            data = file.read()
        at = 0
        while at < len(data):
            end = at + 12 + int.from_bytes(data[at : at + 8], "little")
            yield Example.FromString(data[at + 12 : end]).features.feature
            at = end + 4

    def batch(rows):
        numbers = chain.from_iterable(row["x"].float_list.value for row in rows)
        x = np.fromiter(numbers, np.float32, len(rows) * files.NUMBERS).reshape(len(rows), files.NUMBERS)
        y = torch.tensor([row["y"].int64_list.value[0] for row in rows])
        return torch.from_numpy(x), y, [row["name"].bytes_list.value[0] for row in rows]

    class Records(torch.utils.data.IterableDataset):
        def __iter__(self):
            worker = torch.utils.data.get_worker_info()
            for path in files.examples()[worker.id :: worker.num_workers]:
                rows = list(of(path))
                for start in range(0, len(rows), common.INPUT_BATCH):
                    yield batch(rows[start : start + common.INPUT_BATCH])

    return ready(torch, Records(), workers)


def csv(torch, workers):
    """pyarrow reads and parses blocks of the file, on its own threads."""
    import numpy as np
    import pyarrow
    import pyarrow.csv

    kinds = {f"x{c}": pyarrow.float32() for c in range(files.COLUMNS)} | {"label": pyarrow.int64()}
    options = pyarrow.csv.ConvertOptions(column_types=kinds)
    reading = pyarrow.csv.ReadOptions(block_size=1 << 20)

    class Rows(torch.utils.data.IterableDataset):
        def __iter__(self):
            x, labels = np.empty((0, files.COLUMNS), np.float32), np.empty(0, np.int64)
            for block in pyarrow.csv.open_csv(files.rows(), reading, convert_options=options):
                rest, kept = x, len(x)
                x = np.empty((kept + len(block), files.COLUMNS), np.float32)
                x[:kept] = rest
                for c in range(files.COLUMNS):
                    x[kept:, c] = block.column(c).to_numpy()
                labels = np.concatenate([labels, block.column(files.COLUMNS).to_numpy()])
                whole = len(x) // common.INPUT_BATCH * common.INPUT_BATCH
                pieces = [torch.from_numpy(part[:whole]).split(common.INPUT_BATCH) for part in (x, labels)]
                yield from zip(*pieces)
                x, labels = x[whole:], labels[whole:]
            yield torch.from_numpy(x), torch.from_numpy(labels)

    return ready(torch, Rows(), 0)


def shuffled(torch, workers):
    data = torch.utils.data.TensorDataset(*map(torch.from_numpy, inputs.images()))
    return torch.utils.data.DataLoader(data, batch_size=common.INPUT_BATCH, shuffle=True)


def gathered(torch, workers):
    """The sampler gives the numbers of a batch's rows, so each tensor is indexed once."""
    x, y = map(torch.from_numpy, inputs.images())

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return len(y)

        def __getitem__(self, rows):
            rows = torch.tensor(rows)
            return x.index_select(0, rows), y.index_select(0, rows)

    order = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(y), common.INPUT_BATCH, False)
    return torch.utils.data.DataLoader(Rows(), sampler=order, batch_size=None)


def mapped(torch, workers):
    import numpy as np

    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 1 << 24

        def __getitems__(self, numbers):
            return torch.from_numpy(np.stack([inputs.costly(i) for i in numbers]))

    return torch.utils.data.DataLoader(
        Numbers(), common.INPUT_BATCH, num_workers=workers, persistent_workers=True, collate_fn=lambda batch: (batch,)
    )
