"""TensorFlow on the same work: tf.function on a device, and MirroredStrategy over two logical CPUs."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import common
import inputs_tensorflow
from common import Entry, Fresh, Losses, numbered, repeated

GIVEN = common.arguments()
MIRRORED = "TensorFlow, MirroredStrategy"
THREADS = f"TensorFlow, {GIVEN.threads} threads"
ALONE = "TensorFlow, 1 thread"
CHAIN = 16


def library(threads, replicas=1):
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    return tf


def mirrored():
    tf = library(GIVEN.threads, 2)
    return tf, tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def empty_step(compiled):
    def make():
        tf, strategy = mirrored()
        body = lambda: tf.distribute.get_replica_context().replica_id_in_sync_group
        step = lambda: strategy.run(body)
        return repeated(tf.function(step) if compiled else step)

    return make


def all_reduce(count):
    def make():
        tf, strategy = mirrored()
        mine = strategy.experimental_distribute_values_from_function(lambda _: tf.ones([count]))

        def body(value):
            context = tf.distribute.get_replica_context()
            for _ in range(CHAIN):
                value = context.all_reduce(tf.distribute.ReduceOp.SUM, value)
            return value

        step = tf.function(lambda value: strategy.run(body, (value,)))
        return repeated(lambda: step(mine), lambda out: strategy.experimental_local_results(out)[0][0].numpy())

    return make


class Model:
    """The variables of both models, and the loss of a batch."""

    def __init__(self, tf, name):
        self.tf, self.name = tf, name
        layers = common.MLP if name == "mlp" else common.TOP
        self.layers = [(tf.Variable(w.T.copy()), tf.Variable(b)) for w, b in common.weights(layers)]
        self.variables = [v for layer in self.layers for v in layer]
        if name == "recommender":
            self.table = tf.Variable(common.table())
            self.variables.append(self.table)

    def losses(self, inputs, labels):
        tf = self.tf
        if self.name == "recommender":
            inputs = tf.reshape(tf.gather(self.table, inputs), [-1, common.TOP[0][0]])
        for w, b in self.layers[:-1]:
            inputs = tf.nn.relu(tf.matmul(inputs, w) + b)
        w, b = self.layers[-1]
        logits = tf.matmul(inputs, w) + b
        if self.name == "mlp":
            return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return tf.reshape(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits), [-1])


def training(name, replicas, threads, rate=common.RATE):
    """A function that makes a step on batch number n and gives its loss."""
    tf = library(threads, replicas)
    batch = common.mlp_batch if name == "mlp" else common.recommender_batch
    total = common.MLP_BATCH if name == "mlp" else common.RECOMMENDER_BATCH
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]) if replicas == 2 else tf.distribute.get_strategy()
    with strategy.scope():
        model = Model(tf, name)
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(rate)

    def body(inputs, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model.losses(inputs, labels)) / total
        gradients = tape.gradient(loss, model.variables)
        optimizer.apply_gradients(zip(gradients, model.variables))
        return loss

    @tf.function
    def step(inputs, labels):
        if replicas == 1:
            return body(inputs, labels)
        losses = strategy.run(body, (inputs, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    each = total // replicas

    def piece(array, replica):
        return tf.constant(array[replica * each : (replica + 1) * each])

    def distributed(array):
        if replicas == 1:
            return tf.constant(array)
        return strategy.experimental_distribute_values_from_function(
            lambda context: piece(array, context.replica_id_in_sync_group)
        )

    batches = [tuple(map(distributed, batch(n))) for n in range(common.BATCHES)]
    return lambda n: step(*batches[n % common.BATCHES])


def steps(name, replicas, threads):
    return lambda: repeated(numbered(training(name, replicas, threads)), lambda loss: loss.numpy())


def losses(name, replicas, threads):
    def make():
        step = training(name, replicas, threads, common.LOSS_RATE[name])
        return lambda: [step(n).numpy() for n in range(common.LOSS_STEPS)]

    return make


def entries():
    yield Entry("empty_step_2", "µs", "TensorFlow, compiled", empty_step(True))
    yield Entry("empty_step_2", "µs", "TensorFlow, eager", empty_step(False))
    for size, count in [("4KiB", 1 << 10), ("1MiB", 1 << 18), ("64MiB", 1 << 24)]:
        yield Entry(f"all_reduce_2_{size}", "µs", MIRRORED, all_reduce(count), per=CHAIN)
    for name in ["mlp", "recommender"]:
        yield Entry(f"{name}_1_replicas", "steps/s", ALONE, steps(name, 1, 1))
        yield Entry(f"{name}_2_replicas", "steps/s", THREADS, steps(name, 1, GIVEN.threads))
        yield Entry(f"{name}_2_replicas", "steps/s", MIRRORED, steps(name, 2, GIVEN.threads))
        yield Fresh(f"memory_{name}", "MiB", THREADS, f"{name}_2_replicas", __file__)
        yield Fresh(f"memory_{name}", "MiB", MIRRORED, f"{name}_2_replicas", __file__)
        yield Losses(f"losses_{name}", "", THREADS, losses(name, 1, GIVEN.threads))
        yield Losses(f"losses_{name}", "", MIRRORED, losses(name, 2, GIVEN.threads))
    yield from inputs_tensorflow.entries(library, mirrored, GIVEN.threads)
    yield Fresh("start_to_first_step", "ms", THREADS, "mlp_2_replicas", __file__)
    yield Fresh("start_to_first_step", "ms", MIRRORED, "mlp_2_replicas", __file__)


if __name__ == "__main__":
    common.main(GIVEN, list(entries()), "tensorflow-cpu")
