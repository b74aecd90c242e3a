"""Text files as records: what a line is, what a record is, and what becomes of one that is broken.

A record is one line. In CSV, a line that ends inside a quoted value goes on in the next ones until the quote closes;
where that does not happen within ``OPEN_LINES`` lines, the quote is a mistake: the line alone is rejected and reading
goes on below it. So one stray quote costs one record, never the rest of the file.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa

#: The most lines that one quoted CSV value may span; free-text columns stay far below it.
OPEN_LINES = 1_000

#: Records parsed at one time: enough that the cost per call vanishes, few enough to stay in the processor's cache.
BLOCK = 8_192

_MARK = b"\xef\xbb\xbf"


class Reject(NamedTuple):
    """A record that could not be parsed: its original text, and what is wrong with it."""

    text: str
    detail: str


class Chunk(NamedTuple):
    """Some rows in order, and the records between them that could not be parsed."""

    table: pa.Table
    rejects: list[Reject]


def show(record: bytes) -> str:
    """The record's text; bytes that are not UTF-8 are spelled as escapes."""
    return record.decode("utf-8", "backslashreplace")


def lines(path: Path) -> Iterator[bytes]:
    """The file's lines without their ends; ``.gz`` is unpacked."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file):
            line = line.rstrip(b"\r\n")
            if number == 0:
                line = line.removeprefix(_MARK)
            yield line


def json_records(path: Path) -> Iterator[bytes]:
    """The records of a JSON lines file: its lines, without blank ones."""
    return (line for line in lines(path) if line.strip())


def csv_records(path: Path, delimiter: bytes) -> Iterator[bytes | Reject]:
    """The records of a CSV file; a record may hold line ends inside quotes."""
    source = lines(path)
    easy = _plainly_whole(delimiter).fullmatch
    ahead: list[bytes] = []  # lines read in search of a closing quote that did not come, nearest last
    while (line := ahead.pop() if ahead else next(source, None)) is not None:
        if b'"' not in line or easy(line) or quotes(line, delimiter) != "open":
            if line.strip():
                yield line
            continue
        taken = [line]
        state = "open"
        while state == "open" and len(taken) < OPEN_LINES:
            more = ahead.pop() if ahead else next(source, None)
            if more is None:
                break
            taken.append(more)
            if b'"' in more:  # only such a line can close the quote
                state = quotes(b"\n".join(taken), delimiter)
        if state == "whole":
            yield b"\n".join(taken)
        else:
            ahead.extend(reversed(taken[1:]))
            yield Reject(show(line), "a quoted value is not closed")


def _plainly_whole(delimiter: bytes) -> re.Pattern[bytes]:
    """Matches records whose quotes are as they should be, ten times faster than :func:`quotes` looks at them."""
    d = re.escape(delimiter)
    value = rb'(?:"(?:[^"]++|"")*+"|[^"' + d + rb"][^" + d + rb"]*+|)"
    return re.compile(value + rb"(?:" + d + value + rb")*+")


def quotes(record: bytes, delimiter: bytes) -> Literal["whole", "open", "broken"]:
    """Whether ``record`` ends inside a quoted value (open), or has text behind a closing quote (broken), or neither.

    A quote opens a value only where the value begins.

    >>> [quotes(r, b",") for r in (b'1,"two', b'1,"two "" 2"', b'1,5" pipe', b'"1"x,2')]
    ['open', 'whole', 'whole', 'broken']
    """
    state: Literal["whole", "broken"] = "whole"
    at = 0
    while True:
        if record[at : at + 1] == b'"':
            close = record.find(b'"', at + 1)
            while close >= 0 and record[close + 1 : close + 2] == b'"':
                close = record.find(b'"', close + 2)
            if close < 0:
                return "open"
            at = close + 1
            if record[at : at + 1] not in (delimiter, b""):
                state = "broken"
        at = record.find(delimiter, at)
        if at < 0:
            return state
        at += 1


def blocks(records: Iterable[bytes | Reject], size: int = BLOCK) -> Iterator[tuple[list[bytes], list[Reject]]]:
    """Records in lots of ``size``, those already rejected apart."""
    source = iter(records)
    while lot := list(islice(source, size)):
        yield [r for r in lot if isinstance(r, bytes)], [r for r in lot if isinstance(r, Reject)]
