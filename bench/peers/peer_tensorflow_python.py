"""TensorFlow's ParameterServerStrategy from Python: ids from numpy, rows to numpy, and gradients of rows from numpy."""

import importlib.metadata
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import numpy as np

import common
from cluster_tensorflow import PEER, Cluster, task
from common import Entry

GIVEN = common.arguments()
WORKERS = 1

# The work of python_servers.py.
ROWS, WIDTH, BATCH = 1_000_000, 32, 8192


def batches():
    """Batches of ids, by turns."""
    random = np.random.default_rng(1)
    all = [random.integers(0, ROWS, BATCH) for _ in range(16)]
    while True:
        yield from all


def table(cluster):
    tf = cluster.tf
    with cluster.strategy.scope():
        optimizer = tf.keras.optimizers.SGD(0.1)
        variable = tf.Variable(tf.zeros([ROWS, WIDTH]))
        return variable, optimizer


def look_up(scheduled):
    """In a function of the worker, whose rows are fetched, or by an operation of the coordinator."""

    def make():
        cluster = Cluster(WORKERS)
        tf, (variable, _), ids = cluster.tf, table(cluster), batches()
        gather = tf.function(lambda ids: tf.nn.embedding_lookup(variable, ids))

        def repeat(n):
            for _ in range(n):
                some = tf.constant(next(ids))
                if scheduled:
                    rows = cluster.coordinator.schedule(gather, args=(some,)).fetch()
                else:
                    rows = gather(some).numpy()
            assert rows.shape == (BATCH, WIDTH)

        return repeat

    return make


def push(scheduled):
    def make():
        cluster = Cluster(WORKERS)
        tf, (variable, _), ids = cluster.tf, table(cluster), batches()
        gradient = np.full((BATCH, WIDTH), 1e-4, np.float32)
        shards = list(variable.variables)
        half = ROWS // len(shards)

        @tf.function
        def subtract(ids, gradient):
            for number, shard in enumerate(shards):
                own = tf.where((ids >= number * half) & (ids < (number + 1) * half))[:, 0]
                shard.scatter_sub(tf.IndexedSlices(0.1 * tf.gather(gradient, own), tf.gather(ids, own) - number * half))

        def repeat(n):
            for _ in range(n):
                arguments = (tf.constant(next(ids)), tf.constant(gradient))
                if scheduled:
                    cluster.coordinator.schedule(subtract, args=arguments)
                    cluster.coordinator.join()
                else:
                    subtract(*arguments)

        return repeat

    return make


def entries():
    rows = BATCH / 1e6
    for scheduled, name in ((True, "scheduled"), (False, "direct")):
        yield Entry(f"python_look_up_{name}", "M rows/s", PEER, look_up(scheduled), per=rows)
        yield Entry(f"python_push_{name}", "M rows/s", PEER, push(scheduled), per=rows)


if __name__ == "__main__":
    if GIVEN.meeting:
        task(GIVEN)
    distributions = importlib.metadata.packages_distributions()
    common.main(GIVEN, list(entries()), distributions["tensorflow"][0])
    sys.stdout.flush()
    os._exit(0)  # servers and workers end with this process
