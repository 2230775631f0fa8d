"""TensorFlow's ClusterCoordinator: two servers, workers and the coordinator, all processes on loopback."""

import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import common
from cluster_tensorflow import PEER, SERVERS, Cluster, task
from common import Entry

GIVEN = common.arguments()

# The work, as in bench/src/coordinator.rs.
WORKERS = 2
CLOSURES = 1000
SHARD_BYTES = 256 << 10


def closures():
    cluster = Cluster(WORKERS)
    tf, coordinator = cluster.tf, cluster.coordinator
    nothing = tf.function(lambda: tf.constant(0))

    def repeat(n):
        for _ in range(n):
            for _ in range(CLOSURES):
                coordinator.schedule(nothing)
            coordinator.join()

    return repeat


def recommender(cluster):
    """A step of the recommender on a worker, whose table is looked up and updated where its shards are."""
    tf, strategy = cluster.tf, cluster.strategy
    with strategy.scope():
        table = tf.Variable(common.table())
        layers = [(tf.Variable(w.T.copy()), tf.Variable(b)) for w, b in common.weights(common.TOP)]
    dense = [variable for layer in layers for variable in layer]

    def step(iterator):
        ids, targets = next(iterator)
        # What a Keras optimizer does beside, such as counting steps on a server, isn't asked for.
        with tf.GradientTape() as tape:
            inputs = tf.reshape(tf.nn.embedding_lookup(table, ids), [-1, common.TOP[0][0]])
            (hidden, out) = layers
            inputs = tf.nn.relu(tf.matmul(inputs, hidden[0]) + hidden[1])
            logits = tf.matmul(inputs, out[0]) + out[1]
            losses = tf.nn.sigmoid_cross_entropy_with_logits(targets, logits)
            loss = tf.reduce_sum(losses) / common.RECOMMENDER_BATCH
        shards = list(table.variables)
        for variable, gradient in zip(shards + dense, tape.gradient(loss, shards + dense)):
            if isinstance(gradient, tf.IndexedSlices):
                tf.raw_ops.ResourceScatterSub(
                    resource=variable.handle, indices=gradient.indices, updates=common.RATE * gradient.values
                )
            else:
                tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=common.RATE, delta=gradient)

    return tf.function(step)


def steps(workers):
    def make():
        cluster = Cluster(workers, min_shard_bytes=SHARD_BYTES)
        tf, coordinator = cluster.tf, cluster.coordinator
        step = recommender(cluster)

        def dataset():
            import numpy as np

            ids, targets = zip(*map(common.recommender_batch, range(common.BATCHES)))
            all = tf.data.Dataset.from_tensor_slices((np.stack(ids), np.stack(targets)))
            return all.repeat()

        iterator = iter(coordinator.create_per_worker_dataset(dataset))

        def repeat(n):
            for _ in range(n):
                for _ in range(8 * workers):
                    coordinator.schedule(step, args=(iterator,))
                coordinator.join()

        return repeat

    return make


class Replaced(Entry):
    """A worker that is killed and started again at once, until it has run a function."""

    def prepare(self):
        if self.repeat is None:
            self.cluster = Cluster(WORKERS)
            tf, self.coordinator = self.cluster.tf, self.cluster.coordinator
            self.index = tf.function(tf.distribute.coordinator.experimental_get_current_worker_index)
            self.repeat = lambda n: self.coordinator.join()
            self.coordinator.schedule(self.index)
            self.coordinator.join()

    def round(self, seconds):
        self.prepare()
        start = time.perf_counter()
        self.cluster.replace("worker", 0)
        # What worker 0 runs from here on, its new process runs: the old one is gone.
        while True:
            some = [self.coordinator.schedule(self.index) for _ in range(8)]
            self.coordinator.join()
            if 0 in [one.fetch() for one in some]:
                return (time.perf_counter() - start) * 1e3, {}


def entries():
    yield Entry("coordinator_closures", "closures/s", PEER, closures, per=CLOSURES)
    for workers in [1, 2]:
        yield Entry(f"coordinator_steps_{workers}", "steps/s", PEER, steps(workers), per=8 * workers)
    yield Replaced("coordinator_replaced", "ms", PEER, None)


if __name__ == "__main__":
    if GIVEN.meeting:
        task(GIVEN)
    common.main(GIVEN, list(entries()), "tensorflow-cpu")
    sys.stdout.flush()
    os._exit(0)  # servers and workers end with this process
