"""Writes the TFRecord files beside this script with TensorFlow. tests/tfrecord.rs knows what they hold.

    python make.py [FOLDER]
"""

import pathlib
import sys

import tensorflow as tf

FOLDER = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)


def feature(value):
    if isinstance(value[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=value))
    if isinstance(value[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=value))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=value))


def example(**features):
    features = {name: feature(value) for name, value in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write(name, records, compression=""):
    with tf.io.TFRecordWriter(str(FOLDER / name), compression) as writer:
        for record in records:
            writer.write(record)


def message(field, content):
    """A field of bytes, shorter than 128."""
    return bytes([field << 3 | 2, len(content)]) + content


# Records of 0, 1, ... 39 bytes, each byte the record's length.
lengths = [bytes([n]) * n for n in range(40)]
write("plain.tfrecord", lengths)
write("gzip.tfrecord.gz", lengths, "GZIP")
write("zlib.tfrecord.z", lengths, "ZLIB")
write("none.tfrecord", [])
write("empty_records.tfrecord", [b"", b"", b""])

examples = [
    example(
        scalar=[7],
        ints=[0, -1, 1 << 40, -(1 << 63), (1 << 63) - 1],
        floats=[0.5, -1.5, 3.0e38],
        words=[b"one", b"", b"\x00\xff"],
    ),
    # Features are missing: all but one, then all.
    example(scalar=[-8]),
    example(),
    # Lists without values, and a feature without a list.
    tf.train.Example(
        features=tf.train.Features(
            feature={
                "ints": tf.train.Feature(int64_list=tf.train.Int64List()),
                "floats": tf.train.Feature(float_list=tf.train.FloatList()),
                "words": tf.train.Feature(bytes_list=tf.train.BytesList()),
                "scalar": tf.train.Feature(),
            }
        )
    ).SerializeToString(),
    example(scalar=[9], ints=list(range(300)), words=[b"w" * 1000]),
]
write("examples.tfrecord", examples)

# Written by hand, as other libraries may write it; TensorFlow says below what it means.
def by_hand(kind, *lists):
    return message(1, message(1, message(1, b"a") + message(2, b"".join(message(kind, it) for it in lists))))


one = tf.constant([1.0]).numpy().tobytes()
unusual = {
    "unpacked ints": (by_hand(3, b"\x08\x05\x08\x06"), [5, 6]),
    "packed and unpacked ints": (by_hand(3, b"\x08\x05\x0a\x02\x06\x07"), [5, 6, 7]),
    "unpacked floats": (by_hand(2, b"\x0d" + one + b"\x0d" + one), [1.0, 1.0]),
    "a list in two parts": (by_hand(3, b"\x08\x05", b"\x0a\x01\x06"), [5, 6]),
    "a feature twice": (by_hand(3, b"\x08\x05") + by_hand(3, b"\x08\x06"), [6]),
    "unknown fields": (b"\x50\x01" + message(9, b"?") + by_hand(3, b"\x08\x05\x10\x09"), [5]),
}
for name, (record, meant) in unusual.items():
    found = tf.train.Example.FromString(record).features.feature["a"]
    values = list(found.float_list.value or found.int64_list.value)
    assert values == meant, (name, values, meant)
write("unusual.tfrecord", [record for record, _ in unusual.values()])
