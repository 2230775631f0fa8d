"""What the input entries of the peers share: what a pass is, a costly function, and a checksum of what came.

    figure              a pass                    an example                            made by    checksum
    input_tfrecord_256  8 files of 8192 records   "x" [64] f32, "y" i64, "name" bytes   files.py   2198590241493
    input_csv_256       200,000 lines             x [20] f32, label i64                 files.py   -119805928876
    input_shuffle_256   60,000 rows of tensors    x [784] f32, y i64                    `images`   24663027526410
    input_map_256       4096 numbers of a range   [64] f64                              `costly`   886170595072

A call takes the batches of 256 of one pass, of which the last may be smaller: what the ends of a pass cost is in it.
Passes follow each other without end. Order is free, but for input_shuffle_256: a full shuffle, anew for each pass.
"""

import numpy as np

from common import INPUT_BATCH, Entry, noise, unit

PASS = {"tfrecord": 65_536, "csv": 200_000, "shuffle": 60_000, "map": 4096}
PIXELS = 784
START = np.arange(1, 4097, dtype=np.float64)
ROOTS = 3


def images():
    """The tensors that are shuffled: unit(420) as (60000, 784), noise(421) % 10."""
    count = PASS["shuffle"]
    return unit(420, count * PIXELS).reshape(count, PIXELS), (noise(421, count) % 10).astype(np.int64)


def costly(i):
    """A function of number i: v[j] = (j + 1) (1 + i mod 16) for 4096 j in f64, three times its root, then v[63::64].

    About 20 µs of one core. The instruction that takes the time is as slow per number in vectors of any width, so one
    library's kernels are hardly better than another's; its result is rounded exactly, so all get the same bits.
    """
    v = START * (1 + i % 16)
    for _ in range(ROOTS):
        np.sqrt(v, out=v)
    return v[63::64]


class Input(Entry):
    """`make()` gives `take(n)`, which takes n batches, and `arrays()`, which gives the next batch as arrays.

    Each round's line has a checksum of the first pass, which does not depend on the order of examples.
    """

    def __init__(self, kind, peer, make):
        batches = -(-PASS[kind] // INPUT_BATCH)

        def prepared():
            take, arrays = make()
            self.checksum = sum(checksum(array) for _ in range(batches) for array in arrays())
            return lambda passes: take(passes * batches)

        super().__init__(f"input_{kind}_{INPUT_BATCH}", "examples/s", peer, prepared, per=PASS[kind])

    def round(self, seconds):
        value, _ = super().round(seconds)
        return value, {"checksum": self.checksum}


def checksum(array):
    """The sum of all: integers, floats as floor(x 2^20), names as the sum of their bytes."""
    array = np.asarray(array)
    if array.dtype.kind in "OS":
        return sum(sum(text) for text in array.tolist())
    if array.dtype.kind == "f":
        array = np.floor(array.astype(np.float64) * 2.0**20)
    return int(array.astype(np.int64).sum())
