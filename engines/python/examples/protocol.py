"""A client of parameter servers with Python's standard library alone, written from docs/reference/protocol.md.

It is an example for authors of clients in other languages: it changes tables, and sends changes again after a lost
connection. Programs in Python use the package `distribute-client`. tests/test_protocol.py runs this client.

    servers = [Server("127.0.0.1:7000", 0), Server("127.0.0.1:7001", 1)]
    servers[0].call(create("w", values(f32([2, 2], [1, 2, 3, 4])), ("sgd",)))
    servers[0].call(push_rows("w", [1], f32([1, 2], [0.5, -1]), 0.25))
"""

import hmac
import os
import select
import socket
import struct
import threading
import time

DTYPES = "float16 bfloat16 float32 float64 int8 uint8 int16 uint16 int32 uint32 int64 uint64 bool".split()
FORMATS = dict(zip(DTYPES, "e-fdbBhHiIqQ?"))
HOW = ["assign", "add", "sub", "mul", "div", "min", "max"]
# The hyper-parameters of each rule: f for f64, b for bool.
RULES = {
    "sgd": (0, ""), "momentum": (1, "fb"), "adam": (2, "fffb"), "adamw": (3, "ffffb"), "adagrad": (4, "ff"),
    "rmsprop": (5, "fff"), "ftrl": (6, "ffffff"), "nadam": (7, "fffb"), "lion": (8, "fffb"), "row_adagrad": (9, "ff"),
}  # fmt: skip
PREAMBLE = b"dstrbnet" + struct.pack("<H", 7)


class Refusal(ConnectionError):
    """The server refuses the connection: the reason's number and text."""


class Fault(Exception):
    """A call has failed: the kind of the fault and its text."""


class Refused(Exception):
    """A request was refused, and has changed nothing: its kind and text."""


# Values.
def varint(n):
    out = bytearray()
    while n >= 128:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out) + bytes([n])


def zigzag(n):
    return varint(2 * n if n >= 0 else -2 * n - 1)


def string(s):
    return varint(len(s.encode())) + s.encode()


def text(s):
    return struct.pack("<H", len(s.encode())) + s.encode()


def option(x, encode):
    return b"\0" if x is None else b"\1" + encode(x)


def sizes(xs):
    return varint(len(xs)) + b"".join(map(varint, xs))


def rule(r):
    number, fields = RULES[r[0]]
    return varint(number) + b"".join(struct.pack("<d" if f == "f" else "?", v) for f, v in zip(fields, r[1:]))


class Tensor:
    """A dtype by name, dimensions, and the elements in one tuple. Strings and complex numbers are left out."""

    def __init__(self, dtype, dims, elements, wire=0):
        self.dtype, self.dims, self.elements, self.wire = dtype, list(dims), tuple(elements), wire

    def __eq__(self, other):
        return (self.dtype, self.dims, self.elements) == (other.dtype, other.dims, other.elements)

    def __repr__(self):
        return f"Tensor({self.dtype}, {self.dims}, {self.elements})"

    def put(self, body):
        """Appends the elements to the body, and returns the description for the head."""
        if self.wire == 1:  # the upper half of each float32
            data = b"".join(struct.pack("<f", x)[2:] for x in self.elements)
        else:
            letter = "e" if self.wire == 2 else FORMATS[self.dtype]
            data = struct.pack(f"<{len(self.elements)}{letter}", *self.elements)
        body += data
        return bytes([DTYPES.index(self.dtype), self.wire]) + sizes(self.dims) + varint(len(data))


def f32(dims, elements, wire=0):
    return Tensor("float32", dims, elements, wire)


def ids(elements):
    return Tensor("int64", [len(elements)], elements)


# Contents of tables.
def values(tensor):
    return lambda body: b"\0" + tensor.put(body)


def initializer(name, kind=0, a=0.0, b=0.0, seed=1):
    stream = 0xCBF29CE484222325
    for byte in name.encode():
        stream = (stream ^ byte) * 0x100000001B3 % 2**64
    return varint(seed) + varint(stream) + struct.pack("<Bdd", kind, a, b)


def initialized(shape, start, shards=1, shard=0, mod=False, dtype="float32"):
    head = sizes(shape) + bytes([DTYPES.index(dtype)]) + start + bytes([mod]) + varint(shape[0]) + varint(shards)
    return lambda body: b"\1" + head + varint(shard)


def dynamic(row_shape, start, admit_after=1, waiting=1 << 16, max_rows=None, max_age=None, least_frequent=False):
    options = varint(admit_after) + varint(waiting) + option(max_rows, varint) + option(max_age, varint)
    return lambda body: b"\2" + sizes(row_shape) + b"\2" + start + options + bytes([least_frequent])


def part_of(id, shards):
    """The part of a dynamic variable that has the row of an id."""
    x, mask = (id + 0x9E3779B97F4A7C15) % 2**64, 2**64 - 1
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
    x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
    return (x ^ x >> 31) * shards >> 64


# Requests: whether they are changes, and a function that appends to a body and returns the head.
def create(name, contents, r=None):
    return True, lambda b: varint(0) + string(name) + contents(b) + option(r, rule)


def remove(table):
    return True, lambda b: varint(1) + string(table)


def tables():
    return False, lambda b: varint(2)


def read(table, known=None):
    return False, lambda b: varint(4) + string(table) + option(known, lambda v: varint(v[0]) + varint(v[1])) + b"\0"


def read_rows(table, rows):
    return False, lambda b: varint(5) + string(table) + ids(rows).put(b)


def write(table, how, value):
    return True, lambda b: varint(6) + string(table) + bytes([HOW.index(how)]) + value.put(b)


def write_rows(table, how, rows, value):
    return True, lambda b: varint(7) + string(table) + bytes([HOW.index(how)]) + ids(rows).put(b) + value.put(b)


def step(learning_rate, number):
    """The options of a push. Without a number, the table counts its pushes."""
    return varint(number or 1) + struct.pack("<d??", learning_rate, True, number is None)


def push(table, gradient, learning_rate, number=None):
    return True, lambda b: varint(8) + string(table) + step(learning_rate, number) + gradient.put(b)


def push_rows(table, rows, gradient, learning_rate, number=None):
    return True, lambda b: (
        varint(9) + string(table) + step(learning_rate, number) + ids(rows).put(b) + gradient.put(b)
    )


def state_rows(table, start, end):
    return False, lambda b: varint(10) + string(table) + varint(start) + varint(end)


def state_part(table, part):
    return False, lambda b: varint(11) + string(table) + varint(part)


def restore(table, state):
    def encode(body):
        fields = [varint(x) if isinstance(x, int) else x.put(body) for x in state[1:-1]]
        slots = [string(name) + slot.put(body) for name, slot in state[-1]]
        kind = {"Rows": 0, "Ids": 1, "Slots": 2, "IdSlots": 3}[state[0]]
        return varint(12) + string(table) + varint(kind) + b"".join(fields) + varint(len(slots)) + b"".join(slots)

    return True, encode


def keep(table, first, last, kept):
    return True, lambda b: varint(14) + string(table) + zigzag(first) + zigzag(last) + ids(kept).put(b)


def changed(table, since=None):
    return False, lambda b: varint(18) + string(table) + option(since, lambda p: varint(p[0]) + varint(p[1]))


class Reader:
    """Decodes the responses of an answer."""

    def __init__(self, head, body):
        self.head, self.body = memoryview(head), memoryview(body)

    def bytes(self, n):
        if n > len(self.head):
            raise ValueError("the head is truncated")
        taken, self.head = self.head[:n], self.head[n:]
        return bytes(taken)

    def byte(self):
        return self.bytes(1)[0]

    def varint(self):
        n = shift = 0
        while True:
            byte = self.byte()
            n |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return n

    def string(self):
        return self.bytes(self.varint()).decode()

    def list(self, item):
        return [item() for _ in range(self.varint())]

    def pair(self):
        return self.varint(), self.varint()

    def tensor(self):
        dtype, wire, dims, size = DTYPES[self.byte()], self.byte(), self.list(self.varint), self.varint()
        data, self.body = bytes(self.body[:size]), self.body[size:]
        if wire == 1 or dtype == "bfloat16":
            data = b"".join(b"\0\0" + data[at : at + 2] for at in range(0, size, 2))
        letter = "e" if wire == 2 else "f" if dtype == "bfloat16" else FORMATS[dtype]
        return Tensor(dtype, dims, struct.unpack(f"<{len(data) // struct.calcsize(letter)}{letter}", data), wire)

    def slots(self):
        return self.list(lambda: (self.string(), self.tensor()))

    def state(self):
        kind = self.varint()
        if kind == 0:
            return "Rows", self.varint(), self.tensor(), self.slots()
        if kind == 1:
            return "Ids", self.tensor(), self.tensor(), self.tensor(), self.slots()
        raise ValueError(f"no request of this client is answered with a state {kind}")

    def table(self):
        name, dynamic, shape, dtype = self.string(), self.varint() == 1, self.list(self.varint), self.string()
        rows, parts, size, rule = self.varint(), self.varint(), self.varint(), self.rule()
        reads = dict(rows=self.varint(), bytes=self.varint())
        return dict(name=name, dynamic=dynamic, shape=shape, dtype=dtype, rows=rows, parts=parts, bytes=size, rule=rule,
                    reads=reads)

    def rule(self):
        if not self.byte():
            return None
        number = self.varint()
        name, fields = next((name, fields) for name, (n, fields) in RULES.items() if n == number)
        return (name, *(struct.unpack("<d", self.bytes(8))[0] if f == "f" else self.byte() == 1 for f in fields))

    def response(self):
        """The name of the response and its fields."""
        number, tensor = self.varint(), self.tensor
        if number == 7:
            counts = [self.varint() for _ in range(5)]
            return "Pushed", dict(zip(["rows", "created", "waiting", "full", "evicted"], counts))
        name, *fields = {
            0: ("Refused", self.varint, self.string),
            1: ("Done",),
            2: ("Created", lambda: self.byte() == 1),
            3: ("Tables", lambda: self.list(self.table)),
            4: ("Value", self.pair, tensor),
            5: ("Unchanged",),
            6: ("Rows", tensor),
            8: ("State", self.state),
            9: ("Restored", self.varint),
            10: ("Evicted", self.varint),
            13: ("Changed", self.pair, lambda: self.byte() == 1, tensor, tensor, tensor),
        }[number]
        return (name, *(field() for field in fields))


# The connection.
def exactly(stream, n):
    out = bytearray()
    while len(out) < n:
        part = stream.recv(n - len(out))
        if not part:
            raise ConnectionError("the server has closed the connection")
        out += part
    return bytes(out)


def frame(kind, head=b"", body=b""):
    return struct.pack("<IIQ", kind, len(head), len(body)) + head + body


def message(stream):
    words = exactly(stream, struct.unpack("<H", exactly(stream, 2))[0])
    if words[0] == 5:
        raise Refusal(words[1], words[4:].decode())
    return words


def with_length(words):
    return struct.pack("<H", len(words)) + words


def handshake(stream, index, secret=None, job="", name="reader", own=0):
    task = text(name) + struct.pack("<Q", own) + text("ps") + struct.pack("<Q", index)
    hello = with_length(bytes([1, secret is not None]) + os.urandom(32) + bytes(64) + text(job) + b"\2" + task)
    stream.sendall(PREAMBLE + hello)
    if exactly(stream, len(PREAMBLE)) != PREAMBLE:
        raise ConnectionError("this is not a server of version 6")
    challenge = message(stream)
    proof = 74 if challenge[41] else 42  # after the kind, 8 zeros, the nonce and the optional machine
    both, mine = hello + with_length(challenge[:proof] + b"\0"), b"\0"
    if secret is not None:
        extracted = hmac.digest(b"distribute-net 1", secret, "sha256")
        key = hmac.digest(extracted, b"distribute proof\1", "sha256")
        expected = b"\1" + hmac.digest(key, b"host" + both, "sha256")
        if not hmac.compare_digest(challenge[proof:], expected):
            raise ConnectionError("the server does not know the secret")
        mine = b"\1" + hmac.digest(key, b"caller" + both + b"\0", "sha256")
    stream.sendall(with_length(b"\3" + mine + b"\0"))
    if message(stream) != b"\4":
        raise ConnectionError("the server has not welcomed this client")


class Call:
    def __init__(self, id, head, body, count):
        self.id, self.head, self.body, self.count, self.answer = id, head, body, count, None


class Server:
    """A server, with the numbers of this client's changes there. Calls wait while the server is restarted."""

    def __init__(self, address, index, secret=None, timeout=60, **task):
        self.address, self.index, self.secret, self.timeout, self.task = address, index, secret, timeout, task
        self.client, self.changes, self.acknowledged = int.from_bytes(os.urandom(8), "little"), 0, False
        self.ids, self.unanswered, self.connections = 0, {}, 0
        self.stream, self.sending, self.changed = None, threading.Lock(), threading.Condition()
        self.connect()

    def connect(self):
        """Connects, and sends the unanswered calls again, in their order."""
        until = time.monotonic() + self.timeout
        while True:
            try:
                host, port = self.address.rsplit(":", 1)
                stream = socket.create_connection((host, int(port)), 5)
                try:
                    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    handshake(stream, self.index, self.secret, **self.task)
                    break
                except BaseException:
                    stream.close()
                    raise
            except OSError as error:
                is_final = isinstance(error, Refusal) and error.args[0] not in (11, 15)
                if is_final or time.monotonic() > until:
                    raise
                time.sleep(0.02)
        self.connections, self.last_sent = self.connections + 1, time.monotonic()
        with self.changed:
            self.stream, calls = stream, list(self.unanswered.values())
        threading.Thread(target=self.receive, args=(stream,), daemon=True).start()
        for call in calls:
            self.send(stream, frame(1, call.head, call.body))

    def send(self, stream, data):
        try:
            with self.sending:
                stream.sendall(data)
                self.last_sent = time.monotonic()
        except OSError:
            self.lose(stream)

    def beat(self, stream):
        """Sends a heartbeat, but does not wait: a server that sends answers may read nothing until they are received."""
        if self.sending.acquire(blocking=False):
            try:
                if select.select([], [stream], [], 0)[1]:
                    stream.sendall(frame(2))
                    self.last_sent = time.monotonic()
            finally:
                self.sending.release()

    def lose(self, stream):
        with self.changed:
            if self.stream is stream:
                self.stream = None
            self.changed.notify_all()
        stream.close()

    def receive(self, stream):
        """Receives answers, and sends heartbeats, also while the program computes."""
        heard = time.monotonic()
        try:
            while time.monotonic() - heard < 2.7:
                ready = select.select([stream], [], [], 0.2)[0]
                if time.monotonic() - self.last_sent > 0.4:
                    self.beat(stream)
                if not ready:
                    continue
                kind, head, body = struct.unpack("<IIQ", exactly(stream, 16))
                heard, head, body = time.monotonic(), exactly(stream, head), exactly(stream, body)
                if kind == 3:
                    break
                if kind == 1:
                    with self.changed:
                        call = self.unanswered.pop(struct.unpack_from("<Q", head, 1)[0], None)
                        if call:
                            call.answer = head, body
                        self.changed.notify_all()
        except (OSError, ValueError):
            pass
        self.lose(stream)

    def start(self, *requests, first=None):
        """Sends a call without waiting. `first` sends changes again: it is the number that they had."""
        if first is None:
            first = self.changes
            self.changes += sum(is_change for is_change, _ in requests)
        body = bytearray()
        heads = b"".join(encode(body) for _, encode in requests)
        self.ids += 1
        head = struct.pack("<BQ", 1, self.ids) + text("parameters") + bytes([5, self.acknowledged])
        head += varint(self.client) + varint(first) + bytes([0, len(requests) != 1]) + heads
        call = Call(self.ids, head, bytes(body), len(requests))
        with self.changed:
            self.unanswered[call.id], stream = call, self.stream
        if stream:
            self.send(stream, frame(1, call.head, call.body))
        return call

    def wait(self, call):
        """The responses of a call, also those that are refusals."""
        until = time.monotonic() + self.timeout
        while not call.answer:
            with self.changed:
                if self.stream and not call.answer:
                    self.changed.wait(0.2)
                is_lost = not self.stream and not call.answer
            if is_lost:
                self.connect()
            if time.monotonic() > until:
                raise TimeoutError(f"ps {self.index} has not answered within {self.timeout} s")
        head, body = call.answer
        if head[0] == 3:
            raise Fault(head[9], head[12:].decode())
        if head[9:11] != bytes([5, call.count != 1]):
            raise Refused(*Reader(head[11:], body).response()[1:])
        reader = Reader(head[11:], body)
        responses = [reader.response() for _ in range(call.count)]
        self.acknowledged |= any(name in ("Done", "Created", "Pushed", "Restored", "Evicted") for name, *_ in responses)
        return responses

    def call(self, request, first=None):
        """The response to a request."""
        response = self.wait(self.start(request, first=first))[0]
        if response[0] == "Refused":
            raise Refused(*response[1:])
        return response

    def close(self):
        with self.changed:
            stream, self.stream = self.stream, None
        if stream:
            self.send(stream, frame(3))
            stream.close()
