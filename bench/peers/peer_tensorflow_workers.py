"""TensorFlow on two processes of a thread each: MultiWorkerMirroredStrategy, which sums over gRPC."""

import json
import os
import socket
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import common
from common import Entry, numbered, repeated
from peer_tensorflow import Model

GIVEN = common.arguments()
PEER = "TensorFlow, MultiWorkerMirroredStrategy"
CHAIN = 16


# ---- The second process: rank 0 starts it with the same entry, and tells it how often to repeat.


def free_ports(count):
    """Ports of this host that were free just now; of two hosts, nobody else listens on either."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind((common.addresses(GIVEN)[0], 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def second(figure, meeting):
    """Starts rank 1."""
    command = [sys.executable, __file__, "--only", figure, "--peer", PEER, "--rank", "1", "--meeting", meeting]
    command = common.on_second(GIVEN, command)
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def in_step(child, repeat):
    """Rank 0 gets a function that has rank 1 repeat, too; rank 1 stays here until rank 0 ends."""

    def led(n):
        child.stdin.write(f"{n}\n")
        child.stdin.flush()
        return repeat(n)

    if child:
        return led
    for line in sys.stdin:
        repeat(int(line))
    sys.exit()


def patient():
    """Both processes are stopped while others are measured, longer than the 10 s after which TensorFlow takes one for lost. The
    strategy takes what is configured before it; there is no public name for that."""
    from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
    from tensorflow.python.eager import context

    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        coordinated_jobs=[coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=2)],
        heartbeat_timeout_in_ms=24 * 3600 * 1000,
    )


def joined(figure):
    """The library and a strategy of both processes; in rank 0 rank 1's process, too."""
    child = None
    if GIVEN.rank == 0:
        meeting = ",".join(str(port) for port in free_ports(2))
        child = second(figure, meeting)
    else:
        common.end_with_parent()  # which is rank 0
        meeting = GIVEN.meeting
    workers = [f"{host}:{port}" for host, port in zip(common.addresses(GIVEN), meeting.split(","))]
    task = {"type": "worker", "index": GIVEN.rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)  # one waits for the other worker
    patient()
    ring = tf.distribute.experimental.CommunicationImplementation.RING
    options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
    return tf, tf.distribute.MultiWorkerMirroredStrategy(communication_options=options), child


def all_reduce(figure, count):
    def make():
        tf, strategy, child = joined(figure)
        mine = tf.zeros([count])

        def body(value):
            context = tf.distribute.get_replica_context()
            with tf.device("CPU:0"):  # all_reduce asks the tensor where it is
                value = tf.identity(value)
            for _ in range(CHAIN):
                value = context.all_reduce(tf.distribute.ReduceOp.SUM, value)
            return value

        step = tf.function(lambda value: strategy.run(body, (value,)))
        return in_step(child, repeated(lambda: step(mine), lambda out: out[0].numpy()))

    return make


def steps(figure, name):
    def make():
        tf, strategy, child = joined(figure)
        batch = common.mlp_batch if name == "mlp" else common.recommender_batch
        total = common.MLP_BATCH if name == "mlp" else common.RECOMMENDER_BATCH
        with strategy.scope():
            model = Model(tf, name)
            optimizer = tf.compat.v1.train.GradientDescentOptimizer(common.RATE)

        def body(inputs, labels):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model.losses(inputs, labels)) / total
            gradients = tape.gradient(loss, model.variables)
            optimizer.apply_gradients(zip(gradients, model.variables))
            return loss

        step = tf.function(lambda inputs, labels: strategy.run(body, (inputs, labels)))
        each = total // 2
        piece = lambda array: tf.constant(array[GIVEN.rank * each : (GIVEN.rank + 1) * each])
        batches = [tuple(map(piece, batch(n))) for n in range(common.BATCHES)]
        call = numbered(lambda n: step(*batches[n % common.BATCHES]))
        return in_step(child, repeated(call, lambda loss: loss.numpy()))

    return make


def entries():
    for size, number in common.SUMS.items():
        figure = f"all_reduce_2p_tcp_{size}"
        yield Entry(figure, "µs", PEER, all_reduce(figure, number // 4), per=CHAIN)
    for name in ["mlp", "recommender"]:
        figure = f"{name}_2_processes"
        yield Entry(figure, "steps/s", PEER, steps(figure, name))


if __name__ == "__main__":
    common.main(GIVEN, list(entries()), "tensorflow-cpu")
    sys.stdout.flush()
    os._exit(0)  # rank 1 waits for a line that will not come; it ends with this process
