"""``latecomer state rebucket``: into how many buckets a Spark job's stream may be split."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from latecomer.cli.folders import Uri


def rebucket(
    uri: Uri,
    buckets: Annotated[
        int, typer.Option("--buckets", metavar="N", min=1, help="The most buckets from now on, as in PatternSink.")
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Take the folder over from a writer of which it is not known that it ended.")
    ] = False,
) -> None:
    """Change the number of buckets of a PatternSink's state folder, between two runs of its job.

    Little is written now: the job halves its buckets, once or several times, when it goes on with so many cores that
    it needs more.
    """
    from latecomer.connectors.versions import VersionStore

    before, used = VersionStore(uri).rebucket(buckets, force=force)
    Console(soft_wrap=True, highlight=False).print(
        f"up to {buckets} buckets, before up to {before}; {used} in use. Go on with PatternSink(…, buckets={buckets})"
    )
