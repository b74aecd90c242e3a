"""The words and constants of the language: reserved words, names, numbers, moments and durations, read and written.

Rule: for every function here that writes text there is one that reads it back to an equal value.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from fractions import Fraction

from latecomer.errors import QueryError
from latecomer.query.expressions import Moment
from latecomer.units import UNITS, Duration

#: Clauses in the order in which they must stand.
CLAUSES = ("PATTERN", "WHERE", "WITHIN", "RETURN", "STRATEGY", "CONFIDENCE", "CONSISTENCY")

#: Functions that RETURN knows.
FUNCTIONS = ("confidence", "earliest", "latest")

#: Words that are no names unless they are written in double quotes (or stand after a dot or AS).
RESERVED = frozenset((*CLAUSES, *["AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "IS", "NULL", "TRUE", "FALSE", "AS"]))

#: Integers are 64 bit.
INT_MIN, INT_MAX = -(2**63), 2**63 - 1

_NAME = re.compile(r"[^\W\d]\w*")
# As the grammar matches them: to a regular expression that ignores case, some letters beyond ASCII are an i or an s.
_KEYWORD = re.compile("|".join(sorted(RESERVED)), re.IGNORECASE)
_EPOCH = datetime(1970, 1, 1)
_MOMENT = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})"
    r"(?:[ Tt](\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?)?"
    r"\s*(?:([Zz])|([+-])(\d{2}):?(\d{2}))?"
)


def write_name(name: str) -> str:
    """A name as it must be written: bare where that is possible, else in double quotes.

    >>> write_name("price"), write_name("odd name"), write_name("in")
    ('price', '"odd name"', '"in"')
    """
    if _NAME.fullmatch(name) and not _KEYWORD.fullmatch(name):
        return name
    return '"' + name.replace('"', '""') + '"'


def write_string(value: str) -> str:
    """A text constant, in single quotes."""
    return "'" + value.replace("'", "''") + "'"


def unquote(text: str) -> str:
    """What stands between the quotes of ``'it''s'``, where a quote inside is written twice."""
    quote = text[0]
    return text[1:-1].replace(quote * 2, quote)


def read_duration(parts: list[tuple[str, str]]) -> Duration:
    """The sum of ``(number, unit)`` pairs; raises ValueError for a number with an exponent."""
    return Duration(sum((read_length(number) * UNITS[unit] for number, unit in parts), Fraction(0)))


def read_length(number: str) -> Fraction:
    """A length without exponent, exactly; raises ValueError with one (``1e999999999`` would not fit in memory)."""
    if "e" in number.lower():
        raise ValueError("a duration is written without exponent")
    return Fraction(number)


def read_moment(text: str) -> Moment:
    """Read ``2013-01-01 10:00:00.123+01:00``; the parts after the day may be left out, and no zone is UTC.

    Raises ValueError for what is no time.

    >>> read_moment("1970-01-01 01:00:00.5+01:00").nanoseconds
    500000000
    """
    found = _MOMENT.fullmatch(text.strip())
    if found is None:
        raise ValueError("write it like '2013-01-01 10:00:00.123+01:00'; without a zone it is UTC")
    year, month, day, hour, minute, second, part, _, sign, zone_h, zone_m = found.groups()
    try:
        when = datetime(int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0))
        zone = timezone(timedelta(hours=int(zone_h or 0), minutes=int(zone_m or 0)))
    except ValueError as error:
        raise ValueError(f"there is no such time: {error}") from None
    offset = zone.utcoffset(None)
    since = when - _EPOCH - (offset if sign != "-" else -offset)
    seconds = since.days * 86_400 + since.seconds
    return Moment(seconds * UNITS["s"] + int((part or "").ljust(9, "0")), text)


def write_moment(value: Moment) -> str:
    """A moment in UTC, with as many decimals as it has."""
    seconds, part = divmod(value.nanoseconds, UNITS["s"])
    try:
        when = _EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        raise QueryError(f"a time {seconds} s after 1970 is outside the years 1 to 9999") from None
    decimals = f".{part:09d}".rstrip("0") if part else ""
    return f"{when.isoformat(sep=' ')}{decimals}"
