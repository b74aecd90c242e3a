"""A week of earthquakes as the US Geological Survey published it: event time is the quake, arrival its last update.

The file is ``data/earthquakes.json`` of the npm package ``vega-datasets``. It is fetched with ``npm pack`` into the
ignored folder ``.cache`` when first asked for; nothing is fetched by tests. The seismic network (``net``) is the
source.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from latecomer.stream import Stream

STREAM = Stream(type="kind", ts="ts", id="id", source="net", unit="ms")

PACKAGE = "vega-datasets@3.2.1"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "bench-data"


def load() -> pa.Table:
    """Quakes in order of their last update.

    Columns: id (int64, by event time), kind (``Strong`` from magnitude 2.5, ``Light`` from 1, else ``Weak``), ts and
    arrival (int64, ms of UTC since 1970), net (text), mag (float).
    """
    features: list[dict[str, Any]] = json.loads(_file().read_text())["features"]
    features.sort(key=lambda f: (f["properties"]["time"], f["id"]))
    of = [f["properties"] for f in features]
    strength = np.array([p["mag"] for p in of], float)
    table = pa.table(
        {
            "id": pa.array(range(len(of)), pa.int64()),
            "kind": pa.array(np.where(strength >= 2.5, "Strong", np.where(strength >= 1, "Light", "Weak"))),
            "ts": pa.array([p["time"] for p in of], pa.int64()),
            "net": pa.array([p["net"] for p in of]),
            "mag": pa.array(strength),
            "arrival": pa.array([p["updated"] for p in of], pa.int64()),
        }
    )
    return table.sort_by([("arrival", "ascending"), ("id", "ascending")])


def _file() -> Path:
    """The JSON file, fetched when it is not in the cache."""
    kept = CACHE / "earthquakes.json"
    if kept.exists():
        return kept
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError(f"{kept} is missing and npm is not installed: install npm, or put the file there")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [npm, "pack", PACKAGE, "--silent"], cwd=folder, check=True, capture_output=True, text=True
        )
        with tarfile.open(Path(folder) / done.stdout.split()[-1]) as archive:
            content = archive.extractfile("package/data/earthquakes.json")
            assert content is not None, "the package holds the file"
            kept.write_bytes(content.read())
    return kept
