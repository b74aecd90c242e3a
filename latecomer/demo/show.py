"""``run``: the demo from the data to the table, with progress on the way."""

from __future__ import annotations

import shutil
import sys
from dataclasses import asdict
from json import dumps
from os import PathLike
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from latecomer.connectors.duckdb import DuckDBSink
from latecomer.demo import flights, job, report
from latecomer.demo.queries import LEVELS, TEXTS
from latecomer.errors import ConfigError

#: What a run writes into its folder, and removes from it before the next one.
_OWN = ("stream", "state", "checkpoint", "flights.duckdb", "flights.duckdb.wal", "spark.log")

#: Tells a folder of results from one that happens to have the same name.
_MARK = ".latecomer-demo"


def run(folder: str | PathLike[str] = "demo-results", *, json: bool = False, weeks: int | None = None) -> None:
    """Run the demo and print its table; with ``json``, one JSON document on stdout and nothing else there.

    Args:
        folder: where the stream, the state and the results go; what an earlier run left there is replaced.
        json: print ``{"results": [{"query", "level", "matches", "corrections", "taken_back", "wait_median_min",
            "wait_p95_min", "precision", "recall"}, …], "events": …, "database": …}``.
        weeks: only the first weeks of arrivals, for a quick look.

    Raises MissingDependency or ConfigError when a package or Java is missing.
    """
    if weeks is not None and weeks < 1:
        raise ConfigError(f"weeks={weeks}: give a whole number of at least 1, or None for the whole year")
    say = Console(stderr=True)
    root = _prepared(Path(folder).absolute())
    results = DuckDBSink(root / "flights.duckdb", keep_open=True)
    say.print("Reading the flights that left New York in 2013 …")
    stream = flights.arrivals(flights.read())
    if weeks is not None:
        stream = stream.filter(pc.less(stream["arrived"], stream["arrived"][0].as_py() + weeks * job.WEEK))
    events = int(pc.sum(pc.is_valid(stream["id"])).as_py())
    files = job.write_weeks(stream, root / "stream")
    say.print(_introduction(stream, events), highlight=False, soft_wrap=True)
    with _progress(say) as bar:
        task = bar.add_task("Starting Spark", total=files, changes="")
        done = 0

        def advance(batch_id: int, changes: int) -> None:
            nonlocal done
            done += changes
            bar.update(task, completed=min(batch_id + 1, files), changes=f"{done:,} changes")

        with job.session(root / "spark.log") as spark:
            bar.update(task, description="Weeks of arrivals")
            job.detect(spark, root, results, advance)
    say.print("Comparing with the complete, sorted year …")
    found = report.rows(stream, results)
    if json:
        document = {"results": [asdict(r) for r in found], "events": events, "database": results.path}
        print(dumps(document, indent=2))  # noqa: T201 (this is the command's output)
        return
    console = Console()
    console.print(report.table(found))
    console.print(report.LEGEND, highlight=False)
    console.print(_next_steps(root), highlight=False, markup=False, soft_wrap=True)


def _prepared(root: Path) -> Path:
    """The folder without what an earlier run left in it; a folder that is not a run's own is not touched."""
    root.mkdir(parents=True, exist_ok=True)
    if any(root.iterdir()) and not (root / _MARK).exists():
        raise ConfigError(f"the folder {str(root)!r} holds something else than results of the demo: give another one")
    (root / _MARK).touch()
    for name in _OWN:
        path = root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return root


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[changes]}"),
        TimeElapsedColumn(),
        console=console,
    )


def _introduction(stream: pa.Table, events: int) -> str:
    """What is about to run, and how disordered the stream is."""
    rows = stream.filter(pc.is_valid(stream["id"]))
    times = np.asarray(rows["scheduled"].cast(pa.int64()).to_numpy()) // 60_000_000
    behind = np.maximum.accumulate(times) - times
    most = int(behind.max())
    return (
        f"{events:,} departures in the order in which they left; event time is the schedule.\n"
        f"{(behind > 0).mean():.0%} come after a later one, 5 % more than {np.quantile(behind, 0.95):.0f} minutes "
        f"behind, the last {most // 60} h {most % 60} min.\n"
        f"Queries: {' and '.join(TEXTS)}, each at {len(LEVELS)} levels, in one Spark job."
    )


_TOP = (
    "SELECT carrier, origin, count(*) AS cascades FROM matches WHERE query = $$cascade@conservative$$ "
    "GROUP BY ALL ORDER BY cascades DESC LIMIT 10"
)
_QUERY = "PATTERN SEQ(Late a, !Late x, OnTime b) WHERE [carrier, origin] WITHIN 2 hours RETURN b.flight AS flight"
_COLUMNS = "--ts scheduled --id id --unit min --punctuation PUNCT"


def _next_steps(root: Path) -> str:
    """Where the results are, and three things to try."""
    database, week, tools = (_shown(p) for p in (root / "flights.duckdb", root / "stream", Path(sys.executable).parent))
    return f"""
The results are in {database}: tables changes (the log), matches (what holds now), late and batches.

Try next:
1. Where do delays cascade?
   {tools}/python -c 'import duckdb; print(duckdb.connect("{database}").sql("{_TOP}"))'
2. Replay one week without Spark, at a level of your choice:
   {tools}/latecomer run -q "{_QUERY}" --level "kslack(3 h)" -i {week}/week-00.parquet {_COLUMNS} -o recovered.csv
3. See what a query waits for, and how long it keeps state:
   {tools}/latecomer check "{_QUERY}" --level conservative"""


def _shown(path: Path) -> Path:
    """The path as one would type it here."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
