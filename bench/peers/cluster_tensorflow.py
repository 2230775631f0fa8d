"""A cluster of TensorFlow's ParameterServerStrategy: servers and workers are processes on loopback, this one is the coordinator."""

import json
import socket
import subprocess
import sys

import common

PEER = "TensorFlow, ParameterServerStrategy"
SERVERS = 2


def task(given):
    """In a process that a cluster has started: one server or worker, until the process ends."""
    common.end_with_parent()
    import tensorflow as tf

    kind, spec = json.loads(given.meeting)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.distribute.Server(tf.train.ClusterSpec(spec), job_name=kind, task_index=given.rank, protocol="grpc").join()


class Cluster:
    """The library, a strategy, its coordinator, and the processes of the tasks."""

    def __init__(self, workers, min_shard_bytes=1):
        sockets = [socket.socket() for _ in range(SERVERS + workers)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
        for one in sockets:
            one.close()
        self.spec = {"ps": addresses[:SERVERS], "worker": addresses[SERVERS:]}
        self.processes = {}
        for kind, tasks in self.spec.items():
            for index in range(len(tasks)):
                self.start(kind, index)
        import tensorflow as tf

        self.tf = tf
        tf.get_logger().setLevel("ERROR")
        tf.config.threading.set_intra_op_parallelism_threads(1)
        cluster = tf.train.ClusterSpec(self.spec)
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
        partitioners = tf.distribute.experimental.partitioners
        partitioner = partitioners.MinSizePartitioner(min_shard_bytes, max_shards=SERVERS)
        self.strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)

    def start(self, kind, index):
        meeting = json.dumps([kind, self.spec])
        command = [sys.executable, sys.argv[0], "--rank", str(index), "--meeting", meeting]
        self.processes[kind, index] = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def replace(self, kind, index):
        """Kills a task, and starts it again."""
        before = self.processes[kind, index]
        before.kill()
        before.wait()
        self.start(kind, index)

    def servers(self):
        return [self.processes["ps", index] for index in range(SERVERS)]
