"""Makes the Parquet files of this folder: pip install pyarrow polars duckdb. Bytes of some are changed afterwards."""
import struct

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq


def change(name, find, at, to):
    raw = bytearray(open(name, "rb").read())
    raw[raw.find(find) + at] = to
    open(name, "wb").write(raw)


pq.write_table(pa.table({"n": pa.array([1, None], pa.int64())}), "null-int.parquet")
pq.write_table(pa.table({"l": [[1, 2], [3], [4, 5, 6]]}), "ragged.parquet")
image = pa.array([{"bytes": b"\x89PNG", "path": "a.png"}], pa.struct({"bytes": pa.binary(), "path": pa.string()}))
pq.write_table(pa.table({"image": image, "label": [1]}), "hf-image.parquet")
pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), "twice.parquet")
numbers = pa.table({"x": pa.array(range(0, 10000, 1000), pa.int64())})
pq.write_table(numbers, "crc.parquet", compression="none", use_dictionary=False, write_page_checksum=True)
change("crc.parquet", struct.pack("<q", 3000), 0, 3001 & 0xFF)
pq.write_table(pa.table({"x": [1]}), "brotli.parquet", compression="brotli")

schema = {"age": pl.Int16, "ok": pl.Boolean, "name": pl.String, "x": pl.Float32}
columns = {"age": [31, None, 4], "ok": [True, None, False], "name": ["a", None, "c"], "x": [0.5, None, 2.0]}
pl.DataFrame(columns, schema=schema).write_parquet("null-polars.parquet")
meta = pl.Struct({"w": pl.Int32, "tags": pl.List(pl.String)})
images = [{"bytes": b"\x01\x02", "meta": {"w": 3, "tags": ["a", "b"]}}, None, {"bytes": b"", "meta": None}]
schema = {"image": pl.Struct({"bytes": pl.Binary, "meta": meta}), "label": pl.UInt8}
pl.DataFrame({"image": images, "label": [1, 2, 3]}, schema=schema).write_parquet("struct-polars.parquet")
columns = [pa.array(["p", "q"]), pa.array([1, 2]), pa.array([0.5, 1.5])]
pq.write_table(pa.Table.from_arrays(columns, names=["k", "v", "k"]), "twice-pyarrow.parquet")
xs = [pa.array([1, 2]), pa.array([0.5, 1.5]), pa.array([5, 6])]
s = pa.StructArray.from_arrays(xs, ["x", "x", "y"])
inner = pa.StructArray.from_arrays([xs[0], xs[0], pa.array([2.5, 3.5])], ["x", "x", "z"])
deep = pa.StructArray.from_arrays([inner], ["in"])
pq.write_table(pa.Table.from_arrays([pa.array([7, 8]), s, deep], names=["n", "s", "deep"]), "twice-field-pyarrow.parquet")
pages = pa.table({"a": pa.array(range(600), pa.int64()), "b": pa.array([i * 0.5 for i in range(600)])})
small = {"data_page_size": 300, "write_batch_size": 50, "row_group_size": 400, "write_statistics": False}
options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True, "data_page_version": "2.0"}
pq.write_table(pages, "crc-v2-pyarrow.parquet", **options, **small)
change("crc-v2-pyarrow.parquet", struct.pack("<d", 170 * 0.5), 0, 1)
names = pa.table({"s": pa.array([f"name-{i % 7}" for i in range(300)]), "n": pa.array(range(300))})
options = {"compression": "none", "write_page_checksum": True, "row_group_size": 100}
pq.write_table(names, "crc-dictionary-pyarrow.parquet", **options)
change("crc-dictionary-pyarrow.parquet", b"name-3", 5, ord("9"))
rows = "select i as n, 'text ' || i as t from range(100) t(i)"
duckdb.sql(f"copy ({rows}) to 'brotli-duckdb.parquet' (format parquet, compression brotli)")
lists = {
    "f": pa.array([[1, 2], None, [5, 6]], pa.list_(pa.int32(), 2)),
    "c": pa.array(["x", None, "y"]).dictionary_encode(),
    "l": pa.array([[1.5], [], [2.5, None]], pa.large_list(pa.float64())),
    "ll": pa.array([[[1], [2, 3]], [[4]], []]),
}
pq.write_table(pa.table(lists), "lists-nulls-pyarrow.parquet")
