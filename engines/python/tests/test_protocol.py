"""Runs the client in examples/protocol.py, which was written from the page of the protocol, against `distribute serve`.

DISTRIBUTE_COMMAND is the path of that command. Nothing but the standard library is needed.
"""

import faulthandler
import math
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples"))
from protocol import *  # noqa: E402, F403

COMMAND = os.environ["DISTRIBUTE_COMMAND"]
SECRET = bytes(range(32))
# No test takes longer: then the stacks of all threads are printed, and the process exits.
faulthandler.dump_traceback_later(240, exit=True)


class Processes:
    """Two servers with folders."""

    def __init__(self, folder, secret=None):
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self.addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
        for one in sockets:
            one.close()
        self.folder, self.running = folder, [None, None]
        self.environment = {name: value for name, value in os.environ.items() if name != "DISTRIBUTE_SECRET"}
        if secret:
            self.environment["DISTRIBUTE_SECRET"] = secret.hex()
        for index in range(2):
            self.start(index)

    def start(self, index):
        command = [COMMAND, "serve", "--servers", ",".join(self.addresses), "--index", str(index)]
        command += ["--folder", self.folder]
        self.running[index] = subprocess.Popen(command, env=self.environment, stderr=subprocess.DEVNULL)

    def kill(self, index):
        self.running[index].kill()
        self.running[index].wait()


class Protocol(unittest.TestCase):
    def servers(self, secret=None):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        processes = Processes(folder.name, secret)
        for index in range(2):
            self.addCleanup(lambda index=index: processes.kill(index))
        clients = [Server(address, index, secret) for index, address in enumerate(processes.addresses)]
        for client in clients:
            self.addCleanup(client.close)
        return processes, clients

    def test_dense_tables(self):
        _, (ps, _) = self.servers()
        self.assertEqual(ps.call(tables()), ("Tables", []))
        w = f32([3, 2], range(6))
        self.assertEqual(ps.call(create("w", values(w), ("sgd",))), ("Created", True))
        self.assertEqual(ps.call(create("w", values(w), ("sgd",))), ("Created", False))
        name, version, value = ps.call(read("w"))
        self.assertEqual((name, value), ("Value", w))
        self.assertEqual(ps.call(read("w", version)), ("Unchanged",))
        self.assertEqual(ps.call(read_rows("w", [2, 0, 2])), ("Rows", f32([3, 2], [4, 5, 0, 1, 4, 5])))
        # Gradients of a row that occurs twice are summed.
        ps.call(push_rows("w", [1, 1], f32([2, 2], [1, 2, 3, 4]), 0.5))
        ps.call(push("w", f32([3, 2], [1, 0] * 3, wire=1), 0.25))
        self.assertEqual(ps.call(read("w"))[2], f32([3, 2], [-0.25, 1, -0.25, 0, 3.75, 5]))
        for how, given, expected in [
            ("assign", [2, 4], [2, 4]), ("add", [1, 2], [3, 6]), ("sub", [2, 4], [1, 2]), ("mul", [3, 6], [3, 12]),
            ("div", [1.5, 4], [2, 3]), ("min", [1.5, 9], [1.5, 3]), ("max", [-1, 8], [1.5, 8]),
        ]:  # fmt: skip
            self.assertEqual(ps.call(write_rows("w", how, [0], f32([1, 2], given))), ("Done",))
            self.assertEqual(ps.call(read_rows("w", [0]))[1], f32([1, 2], expected))
        for kind, request in [
            (0, read("v")), (1, create("w", values(f32([1], [0])))), (2, read_rows("w", [3])),
            (3, push("w", f32([3, 2], [math.nan] * 6), 1.0)),
        ]:  # fmt: skip
            with self.assertRaises(Refused) as refused:
                ps.call(request)
            self.assertEqual(refused.exception.args[0], kind, refused.exception)
        self.assertEqual(ps.call(tables())[1][0]["rule"], ("sgd",))
        for dtype, elements in [("int64", [-5, 2**40]), ("float64", [0.1, 1e300]), ("bool", [True, False])]:
            ps.call(create(dtype, values(Tensor(dtype, [2], elements))))
            self.assertEqual(ps.call(read(dtype))[2], Tensor(dtype, [2], elements))
        self.assertEqual(ps.call(remove("w")), ("Done",))

    def test_a_batch_and_its_repetition(self):
        _, (ps, _) = self.servers()
        ps.call(create("w", values(f32([2], [0, 0]))))
        one = write("w", "add", f32([2], [1, 2]))
        requests, first = [one, write("v", "add", f32([1], [1])), one, read_rows("w", [1])], ps.changes
        for repeated in range(2):
            answers = ps.wait(ps.start(*requests, first=first if repeated else None))
            self.assertEqual([name for name, *_ in answers], ["Done", "Refused", "Done", "Rows"])
            self.assertEqual(answers[3][1], f32([1], [4]))

    def test_rules_and_state(self):
        _, (ps, _) = self.servers()
        g, rate = [1, 2, -1, 0.5], 0.5

        def momentum(w, m):
            m = [0.9 * m + g for m, g in zip(m, g)]
            return [w - rate * m for w, m in zip(w, m)], m

        def adagrad(w, a):
            a = [a + g * g for a, g in zip(a, g)]
            return [w - rate * g / (math.sqrt(a) + 1e-7) for w, a, g in zip(w, a, g)], a

        for rule, start, update in [(("momentum", 0.9, False), 0, momentum), (("adagrad", 0.1, 1e-7), 0.1, adagrad)]:
            name, w, slot = rule[0], [1, 2, 3, 4], [start] * 4
            ps.call(create(name, values(f32([2, 2], w)), rule))
            for number in range(3):
                ps.call(push(name, f32([2, 2], g), rate, number=number + 1))
                w, slot = update(w, slot)
            kind, first, found, [(slot_name, found_slot)] = ps.call(state_rows(name, 0, 2))[1]
            self.assertEqual((kind, first, slot_name), ("Rows", 0, "accum"))
            for found, expected in zip(found.elements + found_slot.elements, w + slot):
                self.assertAlmostEqual(found, expected, places=5)
            ps.call(restore(name, ("Rows", 1, f32([1, 2], [7, 8]), [("accum", f32([1, 2], [1, 1]))])))
            ps.call(restore(name, ("Slots", 0, [("accum", f32([1, 2], [2, 2]))])))
            _, _, value, [(_, slots)] = ps.call(state_rows(name, 0, 2))[1]
            self.assertEqual((value.elements[2:], slots.elements), ((7, 8), (2, 2, 1, 1)))

    def test_initial_values_of_parts(self):
        _, clients = self.servers()
        start, parts = initializer("v", kind=1, a=-1, b=1), []
        for shard, ps in enumerate(clients):
            ps.call(create(f"v/part_{shard}", initialized([7, 2], start, 2, shard)))
            parts.append(ps.call(read(f"v/part_{shard}"))[2])
        self.assertEqual([part.dims for part in parts], [[4, 2], [3, 2]])
        clients[0].call(create("complete", initialized([7, 2], start)))
        complete = clients[0].call(read("complete"))[2]
        self.assertEqual(complete.elements, parts[0].elements + parts[1].elements)

    def test_tables_of_ids(self):
        _, clients = self.servers()
        start, everything = initializer("ids", a=1.0), {}
        for shard, ps in enumerate(clients):
            mine = [id for id in range(-20, 20) if part_of(id, 2) == shard]
            self.assertTrue(mine)
            table = f"ids/part_{shard}"
            ps.call(create(table, dynamic([2], start), ("adagrad", 0.1, 1e-7)))
            pushed = ps.call(push_rows(table, mine, f32([len(mine), 2], [1] * 2 * len(mine)), 0.5, number=1))
            self.assertEqual(pushed[1]["created"], len(mine))
            _, position, complete, rows, _, found = ps.call(changed(table))
            self.assertEqual((complete, list(rows.elements)), (True, mine))
            everything.update(zip(mine, found.elements[::2]))
            self.assertEqual(ps.call(keep(table, -20, 19, mine[1:])), ("Evicted", 1))
            self.assertEqual(ps.call(read_rows(table, mine[:1]))[1], f32([1, 2], [1, 1]))
            # The state of each part of the table, in another table.
            ps.call(create("copy", dynamic([2], start), ("adagrad", 0.1, 1e-7)))
            for part in range(next(one["parts"] for one in ps.call(tables())[1] if one["name"] == table)):
                self.assertEqual(ps.call(restore("copy", ps.call(state_part(table, part))[1])), ("Restored", 0))
            self.assertEqual(ps.call(read_rows("copy", mine)), ps.call(read_rows(table, mine)))
        self.assertEqual(len(everything), 40)
        self.assertAlmostEqual(everything[7], 1 - 0.5 / math.sqrt(1.1), places=5)

    def test_killed_servers_apply_each_push_once(self):
        processes, clients = self.servers(SECRET)
        gradient = f32([2], [-1, -2])
        ends, sent, failures = threading.Event(), [0, 0], []

        def train(index):
            try:
                push_until_end(index)
            except BaseException as failure:
                failures.append(failure)

        def push_until_end(index):
            ps, waiting = clients[index], []
            ps.call(create("count", values(f32([2], [0, 0])), ("sgd",)))
            while not ends.is_set():
                waiting.append(ps.start(push("count", gradient, 1.0)))
                sent[index] += 1
                if len(waiting) > 20:
                    self.assertEqual(ps.wait(waiting.pop(0)), [("Done",)])
            for call in waiting:
                self.assertEqual(ps.wait(call), [("Done",)])

        threads = [threading.Thread(target=train, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(6):
            index = random.randrange(2)
            already = sent[index]
            while sent[index] < already + 50 and not failures:
                threads[0].join(0.01)
            processes.kill(index)
            processes.start(index)
        ends.set()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        for ps, count in zip(clients, sent):
            self.assertEqual(ps.call(read("count"))[2], f32([2], [count, 2 * count]))
            # An acknowledged push is not applied again, also not by a server that was restarted.
            processes.kill(ps.index)
            processes.start(ps.index)
            self.assertEqual(ps.call(push("count", gradient, 1.0), first=ps.changes - 1), ("Done",))
            self.assertEqual(ps.call(read("count"))[2], f32([2], [count, 2 * count]))

    def test_a_closed_client(self):
        processes, (ps, _) = self.servers()
        ps.call(tables())
        processes.kill(0)
        while ps.stream:
            with ps.changed:
                ps.changed.wait(0.2)
        ps.close()
        ps.close()

    def test_refused_connections(self):
        processes, _ = self.servers(SECRET)
        known = dict(secret=SECRET)
        for reason, index, options in [(4, 0, {}), (3, 0, dict(known, job="other")), (8, 1, known)]:
            with self.assertRaises(Refusal) as refusal:
                Server(processes.addresses[0], index, **options)
            self.assertEqual(refusal.exception.args[0], reason, refusal.exception)
        with self.assertRaisesRegex(ConnectionError, "does not know the secret"):
            Server(processes.addresses[0], 0, secret=bytes(32), timeout=0)


if __name__ == "__main__":
    unittest.main()
