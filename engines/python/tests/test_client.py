"""Tests of the package, against servers that `distribute serve` runs: DISTRIBUTE_COMMAND is the path of that command."""

import faulthandler
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import distribute_client as dc
import numpy as np

COMMAND = os.environ["DISTRIBUTE_COMMAND"]
# No test takes longer: then the stacks of all threads are printed, and the process exits.
faulthandler.dump_traceback_later(240, exit=True)


def ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return found


class Cluster:
    """Servers in processes, with folders."""

    def __init__(self, count, folder, environment=None):
        self.addresses = [f"127.0.0.1:{port}" for port in ports(count)]
        self.folder, self.environment = folder, {**os.environ, **(environment or {})}
        self.processes = [None] * count
        for index in range(count):
            self.start(index)

    def start(self, index):
        servers = ",".join(self.addresses)
        command = [COMMAND, "serve", "--servers", servers, "--index", str(index), "--folder", self.folder]
        self.processes[index] = subprocess.Popen(command, env=self.environment, stderr=subprocess.DEVNULL)

    def kill(self, index):
        self.processes[index].kill()
        self.processes[index].wait()

    def end(self):
        for index in range(len(self.processes)):
            self.kill(index)


class Client(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.cluster = Cluster(2, cls.folder.name)
        cls.servers = dc.connect(cls.cluster.addresses)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.end()
        cls.folder.cleanup()

    def test_values_are_pulled_assigned_and_pushed_over_all_shards(self):
        for partition in ("div", "mod"):
            value = np.arange(21, dtype=np.float32).reshape(7, 3)
            v = self.servers.variable(f"dense {partition}", value=value, rule=dc.Rule.sgd(), shards=2, partition=partition)
            self.assertEqual((v.shape, v.dtype, v.shards, v.is_dynamic), ((7, 3), "float32", 2, False))
            np.testing.assert_array_equal(v.pull(), value)
            v.push(np.ones((7, 3)), 0.5)
            np.testing.assert_array_equal(v.pull(), value - 0.5)
            v.assign(value * 2)
            v.assign(np.full((7, 3), 3), how="max")
            np.testing.assert_array_equal(v.pull(), np.maximum(value * 2, 3))
            found = self.servers.find(f"dense {partition}", partition=partition)
            np.testing.assert_array_equal(found.look_up(np.arange(7)), v.pull())
            # A variable that exists keeps its values.
            again = self.servers.variable(
                f"dense {partition}", value=value, rule=dc.Rule.sgd(), shards=2, partition=partition
            )
            np.testing.assert_array_equal(again.pull(), np.maximum(value * 2, 3))

    def test_rows_are_looked_up_scattered_and_pushed(self):
        for shards in (1, 2):
            v = self.servers.variable(f"rows {shards}", (10, 4), rule=dc.Rule.adagrad(), shards=shards)
            v.scatter([9, 0], [[1] * 4, [2] * 4])
            v.scatter([9, 9], np.ones((2, 4)), how="add")
            expected = np.zeros((10, 4), np.float32)
            expected[9], expected[0] = 3, 2
            np.testing.assert_array_equal(v.pull(), expected)
            np.testing.assert_array_equal(v.look_up([[9, 1], [0, 9]]), expected[[[9, 1], [0, 9]]])
            self.assertEqual(v.look_up([]).shape, (0, 4))
            gradient = np.array([[1, 2, 3, 4], [1, 1, 1, 1]], np.float32)
            v.push_rows([3, 3], gradient, 0.1)
            summed = gradient.sum(0)
            step = 0.1 * summed / (np.sqrt(0.1 + summed**2) + 1e-7)
            np.testing.assert_allclose(v.look_up([3])[0], -step, rtol=1e-6)
            np.testing.assert_allclose(v.state()["accumulator" if "accumulator" in v.state() else "accum"][3], 0.1 + summed**2, rtol=1e-6)

    def test_rows_by_ids_are_created_by_pushes(self):
        ids = np.array([-5, 1 << 60, 7])
        t = self.servers.dynamic("ids", (2,), initializer=dc.Initializer.constant(1.0), rule=dc.Rule.sgd())
        self.assertTrue(t.is_dynamic and t.shards == 2)
        np.testing.assert_array_equal(t.look_up(ids), np.ones((3, 2)))
        self.assertEqual(t.push_rows(ids, np.ones((3, 2)), 0.5)["created"], 3)
        np.testing.assert_array_equal(t.look_up([7, 8]), [[0.5, 0.5], [1, 1]])
        state = t.state()
        self.assertEqual(sorted(state["ids"]), sorted(ids))
        with self.assertRaisesRegex(dc.InvalidArgument, "rows by ids"):
            t.pull()

    def test_dtypes_and_scalars(self):
        for dtype in ("float64", "int8", "int32", "int64", "uint8", "uint64", "bool"):
            value = np.array([[0, 1], [1, 0]], dtype)
            v = self.servers.variable(f"dtype {dtype}", value=value)
            self.assertEqual((v.pull().dtype, v.pull().tolist()), (value.dtype, value.tolist()))
        view = np.array([0, 1, 2, 255], np.uint8).view(bool)
        self.assertEqual(self.servers.variable("view", value=view).pull().view(np.uint8).tolist(), [0, 1, 1, 1])
        steps = self.servers.variable("steps", value=np.int64(0))
        steps.assign(np.int64(1), how="add")
        self.assertEqual((steps.shape, steps.pull().shape, int(steps.pull())), ((), (), 1))

    def test_all_rules_are_applied(self):
        rules = "sgd momentum adam adamw nadam lion adagrad row_adagrad rmsprop ftrl"
        for name in rules.split():
            v = self.servers.variable(f"rule {name}", value=np.ones((2, 2), np.float32), rule=getattr(dc.Rule, name)())
            v.push(np.ones((2, 2)), 0.1)
            self.assertTrue((v.pull() < 1).all(), name)

    def test_errors_are_typed_and_name_the_server(self):
        v = self.servers.variable("errors", value=np.zeros(3, np.float32))
        with self.assertRaises(dc.Refused) as caught:
            v.push(np.zeros(3), 0.1)
        self.assertEqual(caught.exception.kind, "Rule")
        self.assertRegex(str(caught.exception), r"^ps \d: push: .*rule")
        v.set_rule(dc.Rule.sgd())
        with self.assertRaises(dc.Refused) as caught:
            v.push([np.nan, 0, 0], 0.1, finite=True)
        self.assertEqual(caught.exception.kind, "NotFinite")
        # No shard applies a part of it.
        w = self.servers.variable("errors in shards", (4, 2), rule=dc.Rule.sgd(), shards=2)
        gradient = np.ones((4, 2), np.float32)
        gradient[3, 1] = np.inf
        for push in (
            lambda: w.push(gradient, 0.1, finite=True),
            lambda: w.push_rows(np.arange(4), gradient, 0.1, finite=True),
        ):
            with self.assertRaisesRegex(dc.Refused, "nothing was sent") as caught:
                push()
            self.assertEqual(caught.exception.kind, "NotFinite")
            np.testing.assert_array_equal(w.pull(), np.zeros((4, 2)))
        for wrong in (
            lambda: v.push(np.zeros(4), 0.1),
            lambda: v.look_up([3]),
            lambda: v.look_up([0.5]),
            lambda: v.scatter([0], np.zeros((1, 2))),
            lambda: v.assign(np.zeros(3), how="xor"),
            lambda: self.servers.find("nothing"),
            lambda: self.servers.variable("strings", value=np.array(["a"])),
            lambda: self.servers.variable("both", (3,), value=np.zeros(3)),
            lambda: dc.connect([]),
            lambda: dc.connect(self.cluster.addresses, secret="12"),
        ):
            with self.assertRaises((dc.InvalidArgument, ValueError)):
                wrong()
        for error in (dc.Refused, dc.TimedOut, dc.Unreachable, dc.TooLarge, dc.InvalidArgument):
            self.assertTrue(issubclass(error, dc.Error))
        self.assertTrue(issubclass(dc.TimedOut, TimeoutError) and issubclass(dc.Unreachable, ConnectionError))

    def test_a_server_that_is_not_there_is_an_error_in_time(self):
        address = f"127.0.0.1:{ports(1)[0]}"
        begun = time.monotonic()
        with self.assertRaisesRegex(dc.TimedOut, address):
            dc.connect([address], timeout=0.3)
        self.assertLess(time.monotonic() - begun, 30)
        # One server under the name of another.
        with self.assertRaisesRegex(dc.Unreachable, "it is ps 1, not ps 0"):
            dc.connect([self.cluster.addresses[1]])
        with self.assertRaisesRegex(dc.Unreachable, "another job"):
            dc.connect(self.cluster.addresses, job="another")

    def test_saved_variables_are_restored(self):
        with tempfile.TemporaryDirectory() as folder:
            v = self.servers.variable("saved", (6, 2), rule=dc.Rule.adam(), shards=2)
            t = self.servers.dynamic("saved ids", (2,), rule=dc.Rule.adagrad())
            v.push(np.ones((6, 2)), 0.1)
            t.push_rows([5, -5], np.ones((2, 2)), 0.1)
            before = v.state(), t.look_up([5, -5])
            path = os.path.join(folder, "checkpoint")
            self.servers.save(path)
            v.push(np.ones((6, 2)), 0.1)
            t.push_rows([5], np.ones((1, 2)), 0.1)
            restored = self.servers.restore(path)
            self.assertTrue({"saved", "saved ids"} <= set(restored))
            for name, value in v.state().items():
                np.testing.assert_array_equal(value, before[0][name])
            np.testing.assert_array_equal(t.look_up([5, -5]), before[1])

    def test_rows_that_were_created_after_the_save_are_removed(self):
        with tempfile.TemporaryDirectory() as folder:
            t = self.servers.dynamic("later ids", (1,), rule=dc.Rule.sgd())
            t.push_rows([5, -5, 6], np.ones((3, 1)), 0.1)
            path = os.path.join(folder, "checkpoint")
            self.servers.save(path)
            t.push_rows(np.arange(20), np.ones((20, 1)), 0.1)
            self.servers.restore(path)
            self.assertEqual(sorted(t.state()["ids"].tolist()), [-5, 5, 6])
            np.testing.assert_array_equal(t.look_up([7]), [[0]])

    def test_a_variable_whose_rows_are_divided_round_robin_is_saved_in_the_order_of_its_rows(self):
        with tempfile.TemporaryDirectory() as folder:
            value = np.arange(10, dtype=np.float32).reshape(5, 2)
            cluster = Cluster(2, os.path.join(folder, "two"))
            try:
                servers = dc.connect(cluster.addresses)
                servers.variable("mod", value=value, shards=2, partition="mod")
                servers.save(os.path.join(folder, "checkpoint"))
            finally:
                cluster.end()
            cluster = Cluster(1, os.path.join(folder, "one"))
            try:
                servers = dc.connect(cluster.addresses)
                v = servers.variable("mod", (5, 2))
                self.assertEqual(servers.restore(os.path.join(folder, "checkpoint")), ["mod"])
                np.testing.assert_array_equal(v.pull(), value)
            finally:
                cluster.end()

    @unittest.skipUnless(hasattr(os, "fork"), "processes cannot be forked here")
    def test_a_forked_process_sends_nothing_over_the_connections_of_the_first(self):
        v = self.servers.variable("forked", (2,), rule=dc.Rule.sgd())
        v.push(-np.ones(2), 1.0)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                v.push(-np.ones(2), 1.0)
            except dc.Forked:
                # It closes nothing that the first process uses, and can connect itself.
                self.servers.close()
                dc.connect(self.cluster.addresses).find("forked").push(-np.ones(2), 1.0)
                code = 0
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        v.push(-np.ones(2), 1.0)
        np.testing.assert_array_equal(v.pull(), [3, 3])

    def test_threads_share_the_servers_and_none_holds_pythons_lock(self):
        v = self.servers.variable("threads", (64, 8), rule=dc.Rule.sgd(), shards=2)

        def work():
            for _ in range(50):
                v.push_rows(np.arange(64), -np.ones((64, 8)), 1.0)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
        np.testing.assert_array_equal(v.pull(), np.full((64, 8), 200))

    def test_an_interrupt_ends_a_wait_at_once(self):
        program = (
            "import distribute_client as dc, signal, sys\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "print('waits', flush=True)\n"
            "dc.connect([sys.argv[1]], timeout=200)\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", program, f"127.0.0.1:{ports(1)[0]}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.assertEqual(process.stdout.readline(), b"waits\n")
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
        self.assertIn(b"KeyboardInterrupt", error)


class Secrets(unittest.TestCase):
    def test_a_secret_is_required_where_servers_have_one(self):
        secret = "5a" * 32
        with tempfile.TemporaryDirectory() as folder:
            cluster = Cluster(1, folder, {"DISTRIBUTE_SECRET": secret})
            try:
                with dc.connect(cluster.addresses, secret=secret) as servers:
                    self.assertEqual(servers.variables(), [])
                with self.assertRaisesRegex(dc.Unreachable, "secret"):
                    dc.connect(cluster.addresses, secret="a5" * 32)
            finally:
                cluster.end()


class Kills(unittest.TestCase):
    def test_no_acknowledged_push_is_lost_or_applied_twice_when_servers_are_killed(self):
        with tempfile.TemporaryDirectory() as folder:
            cluster = Cluster(2, folder)
            try:
                servers = dc.connect(cluster.addresses)
                v = servers.variable("counts", (32, 4), rule=dc.Rule.sgd(), shards=2)
                killed, done = [], threading.Event()

                def kill():
                    while not done.wait(0.15):
                        index = len(killed) % 2
                        cluster.kill(index)
                        cluster.start(index)
                        killed.append(index)

                killer = threading.Thread(target=kill)
                killer.start()
                pushes = 0
                while len(killed) < 6:
                    v.push_rows(np.arange(32), -np.ones((32, 4)), 1.0)
                    pushes += 1
                done.set()
                killer.join(100)
                np.testing.assert_array_equal(v.pull(), np.full((32, 4), pushes))
            finally:
                cluster.end()


if __name__ == "__main__":
    unittest.main(verbosity=2)
