"""Formats for state: size and speed of msgpack and Arrow IPC with each codec; and what a put costs.

Run ``python -m benchmarks.formats``. CPU time of one thread, the best of 25; rates count the columns' bytes in memory.
Each format is checked by CRC-32 on both ways, as state is. "As it is used": msgpack, whole numbers narrow, LZ4 where
it pays; the other rows of msgpack hold the numbers narrow, too.
"""

from __future__ import annotations

import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa

from latecomer.storage import packing
from latecomer.storage.folder import StateFolder

ROWS = 100_000
REPEATS = 25
Columns = dict[str, Any]


def store() -> Columns:
    """What a store holds: sorted codes of 2,000 keys and their times, and references."""
    rng = np.random.default_rng(7)
    keys = rng.integers(0, 2_000, ROWS).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    codes = np.sort((keys & ~np.uint64(2**24 - 1)) + rng.integers(0, 2**24, ROWS).astype(np.uint64))
    return {"codes": codes, "refs": rng.permutation(ROWS).astype(np.int64) + 10**7}


def payload() -> Columns:
    """What the log of events holds: times, types, hashes, ids, a text of 5,000 different ones, prices, measurements."""
    rng = np.random.default_rng(7)
    return {
        "ts": pa.array(np.sort(1_700_000_000_000_000 + rng.integers(0, 3_600_000_000, ROWS))),
        "type": pa.array(rng.integers(0, 4, ROWS).astype(np.int32)),
        "content": pa.array(rng.integers(0, 2**63, ROWS).astype(np.uint64)),
        "id": pa.array([f"ev-{i:012d}" for i in range(ROWS)], pa.large_string()),
        "key": pa.array([f"device-{i:05d}" for i in rng.integers(0, 5_000, ROWS)]),
        "price": pa.array(np.round(rng.lognormal(3, 1, ROWS), 2)),
        "value": pa.array(rng.normal(size=ROWS)),
    }


def with_msgpack(codec: str | None) -> tuple[Callable[[Columns], Any], Callable[[Any], Any]]:
    def write(columns: Columns) -> tuple[int, bytes]:
        raw = msgpack.packb(columns, default=packing._encode)
        data = pa.compress(raw, codec, asbytes=True) if codec else raw
        zlib.crc32(data)
        return len(raw), data

    def read(written: tuple[int, bytes]) -> Any:
        size, data = written
        zlib.crc32(data)
        raw = memoryview(pa.decompress(data, size, codec)) if codec else data
        return msgpack.unpackb(raw, ext_hook=packing._decode)

    return write, read


def with_arrow(codec: str | None) -> tuple[Callable[[Columns], Any], Callable[[Any], Any]]:
    options = pa.ipc.IpcWriteOptions(compression=codec)

    def write(columns: Columns) -> tuple[int, bytes]:
        batch = pa.RecordBatch.from_arrays([pa.array(column) for column in columns.values()], names=list(columns))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
            writer.write_batch(batch)
        data = sink.getvalue().to_pybytes()
        zlib.crc32(data)
        return batch.nbytes, data

    def read(written: tuple[int, bytes]) -> Any:
        zlib.crc32(written[1])
        with pa.ipc.open_stream(written[1]) as reader:
            return reader.read_next_batch()

    return write, read


def best(act: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> tuple[float, Any]:
    times = []
    for _ in range(REPEATS):
        begun = clock()
        given = act()
        times.append(clock() - begun)
    return min(times), given


def formats() -> Iterator[str]:
    """The table, line by line."""
    yield f"{'':34}{'size':>8}{'write':>12}{'read':>12}"
    for kind, columns in (("store", store()), ("payload", payload())):
        held = sum(column.nbytes for column in columns.values())
        yield f"{kind}, {held / 1e6:.1f} MB in memory"
        packed, written = best(lambda columns=columns: packing.pack(columns))
        took, _ = best(lambda written=written: packing.unpack(written))
        rates = f"{held / packed / 1e6:7.0f} MB/s{held / took / 1e6:7.0f} MB/s"
        yield f"  {'as it is used':32}{len(written) / held:8.1%}{rates}"
        for name, make in (("msgpack", with_msgpack), ("Arrow IPC", with_arrow)):
            for codec in (None, "lz4", "zstd"):
                raw = "lz4_raw" if codec == "lz4" and make is with_msgpack else codec
                write, read = make(raw)
                wrote, written = best(lambda write=write, columns=columns: write(columns))
                took, _ = best(lambda read=read, written=written: read(written))
                rates = f"{held / wrote / 1e6:7.0f} MB/s{held / took / 1e6:7.0f} MB/s"
                yield f"  {name + ', ' + (codec or 'not compressed'):32}{len(written[1]) / held:8.1%}{rates}"


def puts() -> Iterator[str]:
    """What it costs to make a put durable, on the disk of temporary files."""
    for size in (1_000, 100_000, 10_000_000):
        blob = [np.random.default_rng(1).bytes(size)]
        for sync in (False, True):
            with tempfile.TemporaryDirectory() as path:
                folder = StateFolder(path, sync=sync)
                folder.claim()
                took, slots = best(lambda folder=folder, blob=blob: folder.put(blob), time.perf_counter)
                read, _ = best(lambda folder=folder, slots=slots: folder.get(slots[0]), time.perf_counter)
            yield f"put of {size:>10,} bytes, sync={sync!s:5}: {took * 1e3:7.2f} ms; get {read * 1e3:6.2f} ms"


if __name__ == "__main__":
    pa.set_cpu_count(1)
    print(*formats(), *puts(), sep="\n")
