"""Values in a pipeline's file that are more than text and numbers: lengths of time, sizes, secrets, places.

*Secrets*. In settings that may hold one, ``${NAME}`` stands for an environment variable and ``{ file = "path" }`` for
the content of a file. A :class:`Setting` keeps what was written and looks up the rest when a client is made;
``repr`` and ``str`` show the name of the variable or file, and nothing of a text that was given as it is.

*Places*. A :class:`Place` says where in a message a value is found.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, core_schema

from latecomer.consistency.levels import Level
from latecomer.errors import ConfigError, QueryError, options
from latecomer.query.parse import parse
from latecomer.texts import read_text
from latecomer.units import Duration

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")
_SIZES = {"": 1, "B": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGT", 1)
    for suffix, base in (("iB", 1024), ("B", 1000))
}


class Table(BaseModel):
    """What all tables of the file share: no unknown keys, no change afterwards, no values in errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, arbitrary_types_allowed=True)


def _seconds(value: Any) -> Any:
    """A length of time as seconds; a plain number counts seconds."""
    try:
        duration = Duration.of(value)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return float(duration.exact("s"))


def _bytes(value: Any) -> Any:
    """A size as a number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    names = {name.lower(): size for name, size in _SIZES.items()}
    if found is None or found[2].lower() not in names:
        raise ValueError(
            "a size is needed, like 512 MiB or 2 GB; its units are B, kB, KiB, MB, MiB, GB, GiB, TB and TiB"
        )
    return int(Fraction(found[1]) * names[found[2].lower()])


#: Seconds, written as a length of time: ``"100 ms"``.
Seconds = Annotated[float, BeforeValidator(_seconds)]
#: A number of bytes, written as a size: ``"512 MiB"``.
Bytes = Annotated[int, BeforeValidator(_bytes)]
#: A text that is not empty.
Name = Annotated[str, Field(min_length=1)]


def _several(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


#: One name or a list of names.
Names = Annotated[tuple[Name, ...], BeforeValidator(_several)]


class Setting:
    """A setting that may be or hold a secret.

    >>> setting = Setting("user:${KAFKA_PASSWORD}")
    >>> setting
    Setting(${KAFKA_PASSWORD})
    >>> setting.reveal({"KAFKA_PASSWORD": "x"})
    'user:x'
    """

    __slots__ = ("_file", "_text")

    def __init__(self, text: str = "", *, file: str | None = None) -> None:
        self._text, self._file = text, file

    def reveal(self, environment: Any = os.environ) -> str:
        """The value; raises ConfigError, without any of it, when a variable or file is missing."""
        if self._file is not None:
            return read_text(self._file, "file").rstrip("\r\n")

        def value(found: re.Match[str]) -> str:
            if found[1] not in environment:
                raise ConfigError(f"the environment variable {found[1]} is not set")
            return str(environment[found[1]])

        return _VARIABLE.sub(value, self._text)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must never be printed: the contents of its variables and of its file, where they are there."""
        if self._file is not None:
            try:
                return (self.reveal(),)
            except ConfigError:
                return ()
        return tuple(os.environ[name] for name in _VARIABLE.findall(self._text) if os.environ.get(name))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setting) and (self._text, self._file) == (other._text, other._file)

    def __hash__(self) -> int:
        return hash((self._text, self._file))

    def __repr__(self) -> str:
        names = [f"${{{name}}}" for name in _VARIABLE.findall(self._text)]
        return f"Setting({f'file {self._file!r}' if self._file is not None else ' '.join(names) or '***'})"

    __str__ = __repr__

    @classmethod
    def of(cls, value: Any) -> Setting:
        """A setting from what the file says; raises ValueError, without the value, for what is none."""
        match value:
            case Setting():
                return value
            case bool():
                return cls(str(value).lower())
            case str() if "${" in _VARIABLE.sub("", value):
                raise ValueError(
                    "${ begins the name of an environment variable and needs a } behind it, as in ${NAME}: "
                    'where it is meant as it stands, use { file = "path" }'
                )
            case str() | int() | float():
                return cls(str(value))
            case {"file": str(path), **rest} if not rest:
                return cls(file=path)
            case list() if value and all(isinstance(part, str) for part in value):
                return cls(",".join(value))
        raise ValueError('a text, a number, true, false, a list of texts or { file = "path" } is needed')

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.of, serialization=core_schema.to_string_ser_schema(when_used="always")
        )


#: What the broker knows of a message.
RecordPart = Literal["topic", "partition", "offset", "timestamp", "key", "position"]


class Place(Table):
    """Where in a message a value is found; exactly one of the first four is given.

    Attributes:
        field: a field of the message's value; dots lead into nested ones. A text alone means this.
        header: a header of the message.
        constant: the same for every message.
        record: what the broker knows: ``topic``, ``partition``, ``offset``, ``timestamp``, ``key``, or ``position``
            (``topic-partition-offset``, which is unique).
        unit: of a time: ``ns us ms s min h d`` since 1970, or ``iso`` for texts like ``2013-01-01T10:15:00Z``.
    """

    KINDS: ClassVar[tuple[str, ...]] = ("field", "header", "constant", "record")

    field: Name | None = None
    header: Name | None = None
    constant: str | int | float | bool | None = None
    record: RecordPart | None = None
    unit: Literal["ns", "us", "ms", "s", "min", "h", "d", "iso"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"field": value}
        if isinstance(value, dict):
            given = [kind for kind in cls.KINDS if kind in value]
            if len(given) != 1 and value.keys() <= {*cls.KINDS, "unit"}:
                raise ValueError(f"exactly one of {options(cls.KINDS)} is needed, and {options(given)} is given")
        return value

    @property
    def kind(self) -> str:
        """Which of field, header, constant and record it is."""
        return next(kind for kind in self.KINDS if getattr(self, kind) is not None)

    @property
    def value(self) -> Any:
        """The name of the field or header, the constant, or the part of the record."""
        return getattr(self, self.kind)


def flattened(values: dict[str, Any], apart: Iterable[str] = ()) -> dict[str, Any]:
    """Tables in tables as dotted names, which TOML makes no difference between for whoever writes ``a.b = 1``.

    >>> flattened({"ssl": {"ca": {"location": "x"}, "key": {"file": "y"}}})
    {'ssl.ca.location': 'x', 'ssl.key': {'file': 'y'}}
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict) and set(value) != {"file"} and name not in apart:
            flat |= {f"{name}.{inner}": content for inner, content in flattened(value).items()}
        else:
            flat[name] = value
    return flat


def read_level(text: str) -> Level:
    """A level as the CONSISTENCY clause writes it; raises ConfigError for what is none.

    >>> str(read_level("kslack(5 min)"))
    'kslack(5 min)'
    """
    try:
        level = parse(f"PATTERN SEQ(A a) WITHIN 1 s CONSISTENCY {text}").level
    except QueryError as error:
        raise ConfigError(
            f"level {text!r}: {error.problem}\n  write 'kslack(5 minutes)', 'conservative' or "
            "'aggressive(max_delay = 5 minutes, patience = 10 seconds)'"
        ) from None
    assert level is not None
    return level
