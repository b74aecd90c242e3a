"""TOML with the line of every key, so that an error can name it.

The standard library's parser gives the values and refuses what is no TOML; it does not say where things are. The
scanner here walks over the same text, which it may take for correct, and notes where each key and element stands.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_TOKEN = re.compile(
    r"""(?P<skip>[ \t\r]+|\#[^\n]*)
    |(?P<text>\"{3}(?:[^\\]|\\.)*?\"{3,5}|'{3}.*?'{3,5}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')
    |(?P<bare>[^\s\[\]{}=,\#"']+)
    |(?P<mark>[\[\]{}=,\n])""",
    re.VERBOSE | re.DOTALL,
)

#: Where a value is: the keys and element numbers that lead to it.
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A TOML text: its values, and where they are.

    >>> document = read('name = "q"\\n[[input]]\\ntopic = "a"\\n[[input]]\\ntopic = "b"\\n')
    >>> document.values["input"][1]["topic"], document.line(("input", 1, "topic"))
    ('b', 5)
    >>> document.line(("input", 1, "format"))  # not there: the line of what it would stand in
    4
    """

    values: dict[str, Any]
    _lines: dict[str, int]
    _texts: dict[str, int]

    def line(self, path: Sequence[str | int]) -> int:
        """The line of the key or element, from 1; of the innermost one around it, where it is not there."""
        for length in range(len(path), 0, -1):
            found = self._lines.get(_joined(path[:length]))
            if found is not None:
                return found
        return 1

    def first_line_of_text(self, path: Sequence[str | int]) -> int:
        """The line on which the content of a text begins: a long text may begin below its quotes."""
        return self._texts.get(_joined(path), self.line(path))


def read(text: str) -> Document:
    """Read a TOML text; raises tomllib.TOMLDecodeError, whose message names line and column, for what is none."""
    values = tomllib.loads(text)
    scanner = _Scanner(text.replace("\r\n", "\n"))
    scanner.walk()
    return Document(values, scanner.lines, scanner.texts)


def _joined(path: Sequence[str | int]) -> str:
    """One text for a path: ``a.b`` is the same place whether it is one quoted key or a table in a table."""
    return ".".join(map(str, path))


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    line: int


def _tokens(text: str) -> Iterator[_Token]:
    at, line = 0, 1
    while at < len(text):
        found = _TOKEN.match(text, at)
        assert found is not None, "the text was parsed before"
        if found.lastgroup != "skip":
            yield _Token(str(found.lastgroup), found[0], line)
        line += found[0].count("\n")
        at = found.end()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._tokens = [*_tokens(text), _Token("mark", "\n", text.count("\n") + 1)]
        self._at = 0
        self._elements: dict[Path, int] = {}
        self.lines: dict[str, int] = {}
        self.texts: dict[str, int] = {}

    def walk(self) -> None:
        """Note the place of everything in the document."""
        table: Path = ()
        while self._at < len(self._tokens):
            if self._take("\n"):
                continue
            if self._take("["):
                array = self._take("[")
                table = self._header(self._key(), array)
                self._take("]")
                self._take("]")
            else:
                self._pair(table)

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self, mark: str) -> bool:
        """Step over this mark, if it comes next."""
        found = self._next.kind == "mark" and self._next.text == mark
        self._at += found
        return found

    def _header(self, key: Path, array: bool) -> Path:
        """The path of a table: arrays of tables on its way stand for their last element."""
        line = self._tokens[self._at - 1].line
        path: Path = ()
        for number, part in enumerate(key):
            path = (*path, part)
            if array and number == len(key) - 1:
                self.lines.setdefault(_joined(path), line)
                self._elements[path] = self._elements.get(path, -1) + 1
            if path in self._elements:
                path = (*path, self._elements[path])
        self.lines[_joined(path)] = line
        return path

    def _key(self) -> Path:
        parts: list[str] = []
        while self._next.kind != "mark":
            token = self._next
            self._at += 1
            if token.kind == "text":
                parts.append(next(iter(tomllib.loads(f"{token.text} = 0"))))
            else:
                parts += [part for part in token.text.split(".") if part]
        return tuple(parts)

    def _pair(self, table: Path) -> None:
        line = self._next.line
        path = (*table, *self._key())
        for length in range(len(table) + 1, len(path) + 1):  # a.b = 1 makes a table of a
            self.lines.setdefault(_joined(path[:length]), line)
        self._take("=")
        self._value(path)

    def _value(self, path: Path) -> None:
        self.lines.setdefault(_joined(path), self._next.line)
        if self._take("["):
            number = 0
            while not self._take("]"):
                if not (self._take("\n") or self._take(",")):
                    self._value((*path, number))
                    number += 1
        elif self._take("{"):
            while not self._take("}"):
                if not (self._take("\n") or self._take(",")):
                    self._pair(path)
        else:
            token = self._next
            if token.kind == "text":
                begins = re.match(r"(\"{3}|'{3})\n", token.text) is not None
                self.texts[_joined(path)] = token.line + begins
            while self._next.kind != "mark":  # a date and a time may be two words
                self._at += 1
