"""TensorFlow's ParameterServerStrategy: two servers, two workers and the coordinator, all processes on loopback."""

import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import numpy as np

import common
from cluster_tensorflow import PEER, SERVERS, Cluster, task
from common import Entry

GIVEN = common.arguments()
CLIENTS = 2

# The work, as in bench/src/servers.rs.
ELEMENTS = 4 << 20
ROWS, WIDTH = 1_000_000, 32
BATCH, FEW = 8192, 1024
# So many of a kind in one call of a function, so that what is measured is not how long it takes to schedule one.
DENSE, SPARSE = 2, 8


def made(tf, strategy, rows, width):
    """A variable of so many rows, whose shards are on the servers."""
    with strategy.scope():
        return tf.Variable(tf.zeros([rows, width]))


def here(tf, value):
    """A number of what has come to the worker, so that it has to come."""
    with tf.device("CPU:0"):
        return tf.reshape(value, [-1])[0]


def rate(work):
    """A function of the library, the strategy and its variable gives one that does a piece of work in a worker."""

    def make():
        cluster = Cluster(CLIENTS)
        coordinator = cluster.coordinator
        step = cluster.tf.function(work(cluster.tf, cluster.strategy))

        def repeat(n):
            for _ in range(n):
                coordinator.schedule(step)
            coordinator.join()

        return repeat

    return make


def pull(tf, strategy):
    shards = made(tf, strategy, SERVERS, ELEMENTS).variables

    def step():
        numbers = []
        for _ in range(DENSE):
            with tf.control_dependencies(numbers):
                numbers += [here(tf, shard.read_value()) for shard in shards]
        return tf.add_n(numbers)

    return step


def push(tf, strategy):
    shards = made(tf, strategy, SERVERS, ELEMENTS).variables

    def step():
        done = []
        for number in range(DENSE):
            for shard in shards:
                # One that is sent to two servers, or twice, would be sent once.
                gradient = tf.fill([1, ELEMENTS], 1e-3 * (number + 1) + 0 * tf.random.uniform([]))
                done.append(
                    tf.raw_ops.ResourceApplyGradientDescent(var=shard.handle, alpha=0.1, delta=gradient)
                )
        with tf.control_dependencies(done):
            return tf.constant(0)

    return step


def ids(tf, count):
    """Ids of one server's rows."""
    return tf.random.uniform([count], 0, ROWS // SERVERS, tf.int64)


def looked_up(tf, shards, count):
    gather = lambda shard: tf.raw_ops.ResourceGather(
        resource=shard.handle, indices=ids(tf, count // SERVERS), dtype=tf.float32
    )
    rows = [gather(shard) for shard in shards]
    return tf.add_n([here(tf, some) for some in rows])


def scattered(tf, shards, count):
    """A gradient of rows, subtracted: as fast as one of TensorFlow's optimizers can be."""
    count //= SERVERS
    done = []
    for shard in shards:
        gradient = tf.fill([count, WIDTH], 1e-4 * tf.random.uniform([]))
        done.append(
            tf.raw_ops.ResourceScatterSub(resource=shard.handle, indices=ids(tf, count), updates=gradient)
        )
    return done


def look_up(tf, strategy):
    shards = made(tf, strategy, ROWS, WIDTH).variables

    def step():
        numbers = []
        for _ in range(SPARSE):
            with tf.control_dependencies(numbers[-1:]):
                numbers.append(looked_up(tf, shards, BATCH))
        return tf.add_n(numbers)

    return step


def scatter(tf, strategy):
    return scatter_of(tf, made(tf, strategy, ROWS, WIDTH).variables)


def scatter_of(tf, shards):
    def step():
        done = []
        for _ in range(SPARSE):
            with tf.control_dependencies(done[-SERVERS:]):
                done += scattered(tf, shards, BATCH)
        with tf.control_dependencies(done):
            return tf.constant(0)

    return step


class Latency(Entry):
    """How long a worker's lookup takes while the other worker scatters, as the worker itself measures it."""

    def __init__(self, figure, part):
        super().__init__(figure, "µs", PEER, None)
        self.part = part

    def prepare(self):
        if self.repeat is not None:
            return
        cluster = Cluster(CLIENTS)
        tf, self.coordinator = cluster.tf, cluster.coordinator
        shards = made(tf, cluster.strategy, ROWS, WIDTH).variables
        self.load = tf.function(scatter_of(tf, shards))

        def timed():
            times, last = [], []
            for _ in range(64):
                with tf.control_dependencies(last):
                    begun = tf.timestamp()
                with tf.control_dependencies([begun]):
                    number = looked_up(tf, shards, FEW)
                with tf.control_dependencies([number]):
                    ended = tf.timestamp()
                times.append(ended - begun)
                last = [ended]
            return tf.stack(times)

        self.timed = tf.function(timed)
        self.repeat = lambda n: self.round(0.1)
        self.repeat(1)

    def round(self, seconds):
        self.prepare()
        # Whoever is free takes the next, so nobody can say which worker does what: both are given both, and lookups are beside
        # scattering most of the time.
        start, all = time.perf_counter(), []
        while time.perf_counter() - start < seconds:
            some = []
            for _ in range(4):
                some.append(self.coordinator.schedule(self.timed))
                for _ in range(4):
                    self.coordinator.schedule(self.load)
            self.coordinator.join()
            all += [one.fetch() for one in some]
        return float(np.quantile(np.concatenate(all), self.part)) * 1e6, {}


def resident(process):
    with open(f"/proc/{process.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) * 1024


class Memory(Entry):
    """What servers hold more once there is a table of a million rows."""

    def prepare(self):
        pass

    def round(self, seconds):
        cluster = Cluster(CLIENTS)
        tf, coordinator = cluster.tf, cluster.coordinator
        step = tf.function(lambda: tf.constant(0))
        coordinator.schedule(step)
        coordinator.join()
        before = sum(map(resident, cluster.servers()))
        table = made(tf, cluster.strategy, ROWS, WIDTH)
        more = sum(map(resident, cluster.servers())) - before
        del table
        return more / 1e6, {}


def entries():
    dense = DENSE * SERVERS * ELEMENTS * 4 / 1e9
    rows = SPARSE * BATCH / 1e6
    yield Entry("servers_pull", "GB/s", PEER, rate(pull), per=dense)
    yield Entry("servers_push", "GB/s", PEER, rate(push), per=dense)
    yield Entry("servers_look_up", "M rows/s", PEER, rate(look_up), per=rows)
    yield Entry("servers_scatter", "M rows/s", PEER, rate(scatter), per=rows)
    yield Latency("servers_latency_p50", 0.5)
    yield Latency("servers_latency_p99", 0.99)
    yield Memory("servers_memory", "MB", PEER, None)


if __name__ == "__main__":
    if GIVEN.meeting:
        task(GIVEN)
    common.main(GIVEN, list(entries()), "tensorflow-cpu")
    sys.stdout.flush()
    os._exit(0)  # servers and workers end with this process
