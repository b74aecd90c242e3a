"""Records: the small files that say which versions of a state there are.

The rule: **the last record decides**. A record is either a *version* (a number, the files that it needs, a note) or a
*takeover* (a new writer begins). Each lists the earlier versions that still count; whatever else lies in the folder
does not. So one file that appears in one step adds a version, drops the old ones, and shuts out what a former writer
may still write: its records come before those of the new writer, however late they arrive.

A record's name gives its place: ``EPOCH-WRITER-STEP-NUMBER.json``. Writers take ascending epochs; should two take the
same one, the random name of the writer decides, for everybody in the same way.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from latecomer.storage.shelf import Slot

_FORMAT = 1
_NAME = re.compile(r"(?P<writer>(?P<epoch>\d{10})-[0-9a-f]{8})-\d{8}-(?P<number>\d+|takeover)\.json")
_WRITER = re.compile(r"(?P<epoch>\d{10})-[0-9a-f]{8}(?=[-.]|$)")


class OtherFormat(ValueError):
    """A record that is whole, and that another release understands."""


@dataclass(frozen=True, slots=True)
class Version:
    """A complete version of the state.

    Attributes:
        number: its number, 0 or more, as given to ``commit``.
        epoch: the epoch of its writer.
        residue: where the state's own part is that is read at once.
        files: every file that it needs, with its size in bytes.
        note: what the writer noted with it: plain JSON.
        name: the name of its record.
    """

    number: int
    epoch: int
    residue: Slot
    files: Mapping[str, int]
    note: Mapping[str, Any]
    name: str

    @property
    def nbytes(self) -> int:
        """Bytes of all its files."""
        return sum(self.files.values())


def record_name(writer: str, step: int, number: int | None) -> str:
    """The name of a writer's next record; ``number`` None: a takeover.

    >>> record_name("0000000004-8b1c33d0", 1, 41)
    '0000000004-8b1c33d0-00000001-41.json'
    """
    return f"{writer}-{step:08d}-{'takeover' if number is None else number}.json"


def number_of(name: str) -> int | None:
    """The version's number in a record's name; None for a takeover."""
    found = _NAME.fullmatch(name)
    return int(found["number"]) if found and found["number"] != "takeover" else None


def writer_of(name: str) -> str:
    """The writer (epoch and random name) in the name of any file of the folder; empty where there is none."""
    found = _WRITER.match(name)
    return found[0] if found else ""


def epoch_of(name: str) -> int:
    """The epoch in the name of any file of the folder; 0 where there is none."""
    found = _WRITER.match(name)
    return int(found["epoch"]) if found else 0


def last_record(names: Iterable[str]) -> str | None:
    """The record that decides; None when there is none."""
    return max((name for name in names if _NAME.fullmatch(name)), default=None)


def encode(version: Version | None, kept: Iterable[str]) -> bytes:
    """A record's content. ``version`` None: a takeover; ``kept``: the names of the earlier versions that count.

    Raises ValueError when the note is not plain JSON.
    """
    record: dict[str, Any] = {"format": _FORMAT, "kept": list(kept)}
    if version is not None:
        record |= {
            "number": version.number,
            "epoch": version.epoch,
            "residue": list(version.residue),
            "files": dict(version.files),
            "note": dict(version.note),
        }
    plain = json.loads(json.dumps(record, allow_nan=False))  # the checksum has to fit what a reader finds
    return json.dumps(plain | {"crc32": zlib.crc32(_text(plain))}, indent=1, ensure_ascii=False).encode()


def decode(data: bytes, name: str) -> tuple[Version | None, list[str]]:
    """What :func:`encode` was given: a version (None: a takeover), and the names of the earlier versions that count.

    Raises ValueError, with the reason, when ``data`` is no whole record, OtherFormat when another release can read it.
    """
    try:
        record = json.loads(data)
        check = record.pop("crc32")
        form = record["format"]
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError("is damaged: it is no whole record") from error
    if form != _FORMAT:
        raise OtherFormat(f"has format {form}, and this release reads format {_FORMAT}: use the release that wrote it")
    if check != zlib.crc32(_text(record)):
        raise ValueError("is damaged: it does not match its checksum")
    kept = record["kept"]
    if "number" not in record:
        return None, kept
    file, offset, length = record["residue"]
    slot = (file, offset, length)
    return Version(record["number"], record["epoch"], slot, record["files"], record["note"], name), kept


def _text(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, allow_nan=False).encode()
