"""Files by formula, written where they are absent. bench/src/work/ can write the same bytes without Python.

They are in the folder that DISTRIBUTE_BENCH_FILES names, else in `distribute-bench` of the folder for temporary files.
A file is written under another name and renamed, so one that has its name is whole. By itself this script writes all of
them, and prints the CRC-32 and the size of each: 51cc03ab 2686852 of the first, e91bccfb 38493678 of the last.

`examples-K.tfrecord`, K from 0 to 7, holds the records 8192 K to 8192 K + 8191. In each, all integers little-endian:

    length of the bytes, u64 | masked CRC-32C of those 8 bytes, u32 | the bytes | masked CRC-32C of them, u32

where the mask is rotate_right(crc, 15) + 0xA282EAD8. The bytes are a tf.train.Example, features in the order of their
names, numbers packed. Record r has

    "name", bytes:   L = 8 + noise(402)[r] % 9 letters; letter j is 'a' + noise(403)[16 r + j] % 26
    "x", 64 floats:  unit(400)[64 r + j]
    "y", 1 integer:  noise(401)[r] % 10

`rows.csv` has the header x0,x1,...,x19,label and 200,000 lines; each line ends in a line feed. Number c of row r is
n / 1,000,000 for n = noise(410)[20 r + c] % 2,000,001 - 1,000,000, written as one digit, a point and six digits, with a
minus sign where n < 0. The label is noise(411)[r] % 10.
"""

import os
import tempfile
import zlib
from functools import cache

import numpy as np

from common import noise, unit

PARTS, RECORDS, NUMBERS = 8, 8192, 64  # files, records of each, numbers of "x"
ROWS, COLUMNS = 200_000, 20


def examples():
    """The paths of the files of records."""
    return [_written(f"examples-{k}.tfrecord", lambda: records(k * RECORDS, (k + 1) * RECORDS)) for k in range(PARTS)]


def rows():
    """The path of the CSV file."""
    return _written("rows.csv", csv)


def _written(name, make):
    folder = os.environ.get("DISTRIBUTE_BENCH_FILES") or os.path.join(tempfile.gettempdir(), "distribute-bench")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        beside = f"{path}.{os.getpid()}"
        with open(beside, "wb") as file:
            file.write(make())
        os.replace(beside, path)
    return path


# ---- Records. Those of one length are made at once: an array of bytes, a row for each.


class Streams:
    """What is in all records."""

    def __init__(self):
        count = PARTS * RECORDS
        self.x = unit(400, count * NUMBERS).reshape(count, NUMBERS)
        self.y = (noise(401, count) % 10).astype(np.uint8)
        self.length = 8 + noise(402, count) % 9
        self.letters = (ord("a") + noise(403, count * 16) % 26).astype(np.uint8).reshape(count, 16)


streams = cache(Streams)


def records(start, end):
    """The bytes of these records."""
    out = [b""] * (end - start)
    for length in range(8, 17):
        (places,) = np.nonzero(streams().length[start:end] == length)
        for place, record in zip(places, framed(serialized(start + places, length))):
            out[place] = record.tobytes()
    return b"".join(out)


def serialized(which, length):
    """The Examples (records, bytes) of records whose names have this length."""
    parts = streams()
    x = np.ascontiguousarray(parts.x[which], "<f4").view(np.uint8)
    features = []
    for key, kind, values in [
        (b"name", b"\x0a", parts.letters[which, :length]),
        (b"x", b"\x12", x),
        (b"y", b"\x1a", parts.y[which, None]),
    ]:
        feature = field(kind, field(b"\x0a", [values]))
        features += field(b"\x0a", [*field(b"\x0a", [same(key)]), *field(b"\x12", feature)])
    return joined(field(b"\x0a", features))


def field(tag, parts):
    """A field of bytes: its tag, how many there are, and they."""
    size = sum(part.shape[-1] for part in parts)
    return [same(tag + varint(size)), *parts]


def same(data):
    """Bytes that all records have."""
    return np.frombuffer(data, np.uint8)


def varint(number):
    low = [number & 0x7F]
    while number := number >> 7:
        low[-1] |= 0x80
        low.append(number & 0x7F)
    return bytes(low)


def joined(parts):
    """Side by side; what is the same for all records is repeated."""
    count = next(len(part) for part in parts if part.ndim == 2)
    return np.concatenate([np.broadcast_to(part, (count, part.shape[-1])) for part in parts], axis=1)


def framed(data):
    """Records around these bytes."""
    length = same(data.shape[1].to_bytes(8, "little"))
    return joined([length, masked(length[None])[0], data, masked(data)])


def masked(data):
    """The masked CRC-32C, as four bytes, of each row."""
    crc = np.full(len(data), 0xFFFFFFFF, np.uint32)
    for column in data.T:
        crc = CRC[(crc ^ column) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    crc = ~crc
    crc = (crc >> np.uint32(15) | crc << np.uint32(17)) + np.uint32(0xA282EAD8)
    return crc.astype("<u4")[:, None].view(np.uint8)


def _table():
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = crc >> np.uint32(1) ^ (crc & np.uint32(1)) * np.uint32(0x82F63B78)
    return crc


CRC = _table()

# ---- CSV.


def csv():
    """The bytes of the CSV file."""
    numbers = (noise(410, ROWS * COLUMNS) % 2_000_001).astype(np.int64).reshape(ROWS, COLUMNS) - 1_000_000
    labels = (noise(411, ROWS) % 10).astype(np.uint8)
    text = np.zeros((ROWS, COLUMNS * 10 + 2), np.uint8)
    cells = text[:, :-2].reshape(ROWS, COLUMNS, 10)  # sign, digit, point, six digits, comma
    cells[..., 0] = np.where(numbers < 0, ord("-"), 0)
    rest = np.abs(numbers)
    for place in [8, 7, 6, 5, 4, 3, 1]:
        cells[..., place] = ord("0") + rest % 10
        rest //= 10
    cells[..., 2], cells[..., 9] = ord("."), ord(",")
    text[:, -2], text[:, -1] = ord("0") + labels, ord("\n")
    header = ",".join([*(f"x{c}" for c in range(COLUMNS)), "label"]) + "\n"
    return header.encode() + text[text != 0].tobytes()


if __name__ == "__main__":
    for path in [*examples(), rows()]:
        with open(path, "rb") as file:
            data = file.read()
        print(f"{zlib.crc32(data):08x}", len(data), path)
