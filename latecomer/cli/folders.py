"""``latecomer state``: what a state folder holds, whether it is whole, and what can go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from latecomer.cli.inputs import JsonOption
from latecomer.cli.report import some
from latecomer.errors import StateError

if TYPE_CHECKING:
    from latecomer.storage.reader import StateReader

Uri = Annotated[
    str, typer.Argument(metavar="URI", help="The state folder: a local path, or a URI like s3://bucket/folder.")
]
#: So much of a line the columns before the note take, at most.
BEFORE_NOTE = 56

state = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Look after a state folder: list its versions, check them, delete what is not needed.",
)


@state.command("ls")
def list_versions(uri: Uri, as_json: JsonOption = False) -> None:
    """List the versions: number, epoch of the writer, files, size, what is new since the version before, note."""
    from latecomer.storage.upkeep import unnamed

    folder = _opened(uri)
    rows: list[dict[str, Any]] = []
    before: set[str] = set()
    for number in folder.versions():
        version = folder.read(number)
        new = sum(size for name, size in version.files.items() if name not in before)
        before = set(version.files)
        rows.append(
            {
                "version": number,
                "epoch": version.epoch,
                "files": len(version.files),
                "bytes": version.nbytes,
                "new_bytes": new,
                "note": dict(version.note),
            }
        )
    others = unnamed(folder)
    if as_json:
        told = {"versions": rows, "unnamed": {"files": len(others), "bytes": sum(others.values())}}
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("version", "epoch", "files", "size", "new"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("note", no_wrap=True, overflow="ellipsis")
    console = Console()
    room = max(console.width - BEFORE_NOTE, 20)
    for row in rows:
        note = json.dumps(row["note"], ensure_ascii=False) if row["note"] else ""
        sizes = (in_bytes(row["bytes"]), in_bytes(row["new_bytes"]))
        cells = (str(row["version"]), str(row["epoch"]), str(row["files"]), *sizes)
        table.add_row(*cells, Text(note if len(note) <= room else note[: room - 1] + "…"))
    if rows:
        console.print(table)
    else:
        console.print("no complete version")
    if others:
        said = f"{some(len(others), 'file')} ({in_bytes(sum(others.values()))}) in no version: "
        console.print(
            said + "the writer's, or left by one that has died; the next writer deletes those", soft_wrap=True
        )


@state.command()
def verify(uri: Uri, as_json: JsonOption = False) -> None:
    """Read every blob of every version and compare it with its checksum; exit with 1 when anything is damaged."""
    from latecomer.storage.upkeep import verify as look

    checked = look(_opened(uri))
    if as_json:
        told = {
            "versions": list(checked.versions),
            "files": checked.files,
            "blobs": checked.blobs,
            "bytes": checked.nbytes,
            "damages": [{"file": d.file, "problem": d.problem, "versions": list(d.versions)} for d in checked.damages],
        }
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        console = Console(soft_wrap=True)
        seen = (
            f"{some(len(checked.versions), 'version')}, {some(checked.files, 'file')}, {some(checked.blobs, 'blob')}, "
        )
        console.print(seen + in_bytes(checked.nbytes) + ("" if checked.damages else ": all whole"), highlight=False)
        for damage in checked.damages:
            console.print(Text("damaged: ", style="bold red") + Text(f"{damage.file} {damage.problem}{_in(damage)}"))
        whole = set(checked.versions).difference(*(damage.versions for damage in checked.damages))
        if checked.damages:
            last = f"the last whole version is {max(whole)}" if whole else "no version is whole"
            console.print(f"{last}; put the damaged files back from a copy, or go on from a whole version")
    if checked.damages:
        raise typer.Exit(1)


@state.command()
def prune(
    uri: Uri,
    keep: Annotated[
        int | None, typer.Option("--keep", metavar="N", help="Drop all versions but the last N. Default: drop none.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete old versions, and files that dead writers have left. A writer may be at work meanwhile."""
    from latecomer.storage.upkeep import prune as clear

    pruned = clear(_opened(uri), keep, dry_run=dry_run)
    if as_json:
        told = {
            "dry_run": dry_run,
            "versions": list(pruned.versions),
            "files": list(pruned.files),
            "bytes": pruned.nbytes,
            "held": pruned.held,
        }
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False))
        return
    console = Console(soft_wrap=True, highlight=False)
    for file in pruned.files:
        console.print(Text(file))
    done = "would be deleted" if dry_run else "deleted"
    dropped = f", with version{'s' if len(pruned.versions) > 1 else ''} {', '.join(map(str, pruned.versions))}"
    files = f"{some(len(pruned.files), 'file')} ({in_bytes(pruned.nbytes)}) {done}"
    console.print(files + (dropped if pruned.versions else ""))
    if pruned.held and keep is not None:
        console.print("a writer has claimed the folder and not committed yet: until it has, every version stays")


def in_bytes(count: int) -> str:
    """A size to three digits.

    >>> in_bytes(17), in_bytes(2_048), in_bytes(123_456_789)
    ('17 B', '2 KiB', '118 MiB')
    """
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1000:
            break
        size, unit = size / 1024, larger
    return f"{size:.3g} {unit}"


def _opened(uri: str) -> StateReader:
    """The folder; an error when nobody has ever claimed it, as with a path that is mistyped."""
    from latecomer.storage.reader import StateReader

    folder = StateReader(uri)
    if not folder.listed("claims") and not folder.listed("versions"):
        within = str(Path(uri) / "state")
        hint = f"{within!r}, which a service uses" if Path(within).is_dir() else "that a runtime or sink was given"
        raise StateError(f"there is no state in {folder.shown!r}: give the folder {hint}")
    return folder


def _in(damage: Any) -> str:
    if not damage.versions:
        return ""
    return f" (version{'s' if len(damage.versions) > 1 else ''} {', '.join(map(str, damage.versions))})"
