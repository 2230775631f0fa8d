"""Input pipelines of tf.data, by themselves and distributed over two logical CPUs.

Batches are taken in the loop of a tf.function: each `next` from Python takes longer, of a strategy several times.
"""

import common
import files
import inputs
from common import Entry
from inputs import Input

MIRRORED = "TensorFlow, MirroredStrategy"
ALONE = "TensorFlow, tf.data"
BY_INDEX = "TensorFlow, tf.data by indices"


def entries(library, mirrored, threads):
    """`library(threads)` is TensorFlow with so many, `mirrored()` is it with a strategy."""

    def pipeline(peer, dataset):
        """How batches are taken, and how they are looked at."""
        tf, strategy = mirrored() if peer == MIRRORED else (library(threads), None)
        data = dataset(tf, threads)
        iterator = iter(strategy.experimental_distribute_dataset(data) if strategy else data)

        @tf.function
        def loop(iterator, n):
            for _ in tf.range(n):
                next(iterator)

        def arrays():
            parts = tf.nest.flatten(next(iterator))
            pieces = strategy.experimental_local_results if strategy else lambda part: [part]
            return [piece.numpy() for part in parts for piece in pieces(part)]

        return lambda n: loop(iterator, tf.constant(n)), arrays

    def endless(dataset):
        def built(tf, threads):
            options = tf.data.Options()
            options.deterministic = False
            options.threading.max_intra_op_parallelism = 1
            return dataset(tf, threads).prefetch(tf.data.AUTOTUNE).with_options(options)

        return built

    for peer in [MIRRORED, ALONE]:
        yield Entry(f"input_range_{common.INPUT_BATCH}", "batches/s", peer, lambda p=peer: pipeline(p, numbers)[0])
    kinds = [("tfrecord", records), ("csv", csv), ("shuffle", shuffled), ("map", mapped)]
    ways = [(kind, peer, dataset) for kind, dataset in kinds for peer in [MIRRORED, ALONE]]
    for kind, peer, dataset in [*ways, ("shuffle", BY_INDEX, gathered)]:
        yield Input(kind, peer, lambda p=peer, d=dataset: pipeline(p, endless(d)))


def numbers(tf, threads):
    return tf.data.Dataset.range(1 << 40).batch(common.INPUT_BATCH)


def records(tf, threads):
    features = {
        "x": tf.io.FixedLenFeature([files.NUMBERS], tf.float32),
        "y": tf.io.FixedLenFeature([], tf.int64),
        "name": tf.io.FixedLenFeature([], tf.string),
    }

    def part(path):
        """Batches of one file, parsed: several files are read at once, each of whole batches."""
        batches = tf.data.TFRecordDataset(path, buffer_size=1 << 20).batch(common.INPUT_BATCH)
        return batches.map(lambda batch: tf.io.parse_example(batch, features))

    paths = tf.data.Dataset.from_tensor_slices(files.examples())
    return paths.interleave(part, cycle_length=2 * threads, num_parallel_calls=2 * threads).repeat()


def csv(tf, threads):
    """Batches of lines, decoded in parallel: faster than CsvDataset and make_csv_dataset."""
    defaults = [tf.zeros([], tf.float32)] * files.COLUMNS + [tf.zeros([], tf.int64)]

    def decode(lines):
        *x, label = tf.io.decode_csv(lines, defaults)
        return tf.stack(x, axis=1), label

    lines = tf.data.TextLineDataset(files.rows(), buffer_size=1 << 20).skip(1)
    return lines.batch(common.INPUT_BATCH).map(decode, num_parallel_calls=tf.data.AUTOTUNE).repeat()


def shuffled(tf, threads):
    rows = tf.data.Dataset.from_tensor_slices(inputs.images())
    return rows.shuffle(inputs.PASS["shuffle"]).batch(common.INPUT_BATCH, num_parallel_calls=tf.data.AUTOTUNE).repeat()


def gathered(tf, threads):
    """Shuffles numbers of rows, and gathers a batch at a time."""
    x, y = map(tf.constant, inputs.images())
    order = tf.data.Dataset.range(inputs.PASS["shuffle"]).shuffle(inputs.PASS["shuffle"])
    gather = lambda rows: (tf.gather(x, rows), tf.gather(y, rows))
    return order.batch(common.INPUT_BATCH).map(gather, num_parallel_calls=tf.data.AUTOTUNE).repeat()


def mapped(tf, threads):
    """So many calls at once: AUTOTUNE settles for few, and takes more than twice the time for each."""
    start = tf.constant(inputs.START)

    def costly(i):
        v = start * tf.cast(1 + i % 16, tf.float64)
        for _ in range(inputs.ROOTS):
            v = tf.sqrt(v)
        return v[63::64]

    return tf.data.Dataset.range(1 << 40).map(costly, num_parallel_calls=32 * threads).batch(common.INPUT_BATCH)
