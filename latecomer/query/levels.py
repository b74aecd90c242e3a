"""The CONSISTENCY clause: name and arguments -> a consistency level, or an error that points at the argument.

What a level's options mean is said in :mod:`latecomer.consistency.levels`; here is only how they are written. Whatever
``str(level)`` prints is read back to an equal level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from typing import Any

from lark import Token, Tree

from latecomer.consistency.levels import CHOICES, Aggressive, Conservative, KSlack, Level
from latecomer.errors import QueryError, options
from latecomer.query.words import write_string
from latecomer.units import Duration


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument as it was written: ``source 'truck' = 1 h`` has name, of and value.

    Attributes:
        name: the option; None for a bare length.
        of: the text between the option and the equals sign.
        value: a word, or a length as the parser knows it.
        position: where the argument starts in the text.
    """

    name: str | None
    of: str | None
    value: Token | Tree[Token]
    position: int

    @property
    def told(self) -> str:
        """The value as it was written."""
        if isinstance(self.value, Token):
            return str(self.value)
        return " ".join(map(str, self.value.scan_values(lambda _: True)))

    @property
    def value_position(self) -> int:
        """Where the value starts in the text."""
        start = self.value.start_pos if isinstance(self.value, Token) else self.value.meta.start_pos
        return int(start or 0)


#: What values options take: a duration, a share between 0 and 1, one that may be 0, or one of some words.
_LENGTH, _SHARE, _STEP = "a duration", "a share", "a step"
_ON_LATE = ("divert", "amend")
_OPTIONS: dict[str, dict[str, str | tuple[str, ...]]] = {
    "kslack": {"k": _LENGTH, "source": _LENGTH, "recall": _SHARE, "max": _LENGTH, "on_late": _ON_LATE},
    "conservative": {"on_late": _ON_LATE},
    "aggressive": {
        "max_delay": _LENGTH,
        "patience": _LENGTH,
        "retractions": _SHARE,
        "corrections": ("changes", "replace"),
        "confidence_step": _STEP,
        "on_late": _ON_LATE,
    },
}
#: Which options may be given without their names, in this order.
_BARE = {"kslack": ("k",), "conservative": (), "aggressive": ("max_delay", "patience")}
#: Options that exclude each other, and why.
_APART = {
    ("k", "recall"): "recall chooses the slack, and k fixes it",
    ("source", "recall"): "recall chooses one slack for all sources",
    ("patience", "retractions"): "retractions chooses the patience, and patience fixes it",
}


@dataclass(frozen=True, slots=True)
class LevelReader:
    """Reads levels. ``fail`` makes the error for a problem, a place and a hint; ``length`` reads a length."""

    fail: Callable[[str, int, str | None], QueryError]
    length: Callable[[Tree[Token]], Duration]

    def read(self, word: Token, arguments: Sequence[Argument]) -> Level:
        """The level of this name with these arguments."""
        name, at = word.lower(), word.start_pos or 0
        if name not in _OPTIONS:
            raise self.fail(f"{str(word)!r} is not a consistency level{_guess(name, _OPTIONS)}", at, CHOICES)
        given: dict[str, Any] = {}
        sources: dict[str, Duration] = {}
        for number, argument in enumerate(arguments):
            option = self._option(name, number, argument)
            value = self._value(option, _OPTIONS[name][option], argument)
            if (argument.of in sources) if argument.of is not None else (option in given):
                twice = option if argument.of is None else f"the slack of {write_string(argument.of)}"
                raise self.fail(f"{twice} is given twice", argument.position, "give it once")
            if argument.of is None:
                given[option] = value
            else:
                assert isinstance(value, Duration)
                sources[argument.of] = value
            self._check_together({*given, *(["source"] if sources else [])}, argument)
        match name:
            case "kslack":
                self._check_slack(given.keys(), at)
                return KSlack(**given, sources=sources)
            case "conservative":
                return Conservative(**given)
            case _:
                if "max_delay" not in given:
                    raise self.fail("aggressive needs max_delay", at, "for example aggressive(max_delay = 5 minutes)")
                return Aggressive(**given)

    def _option(self, level: str, number: int, argument: Argument) -> str:
        """The option that an argument gives."""
        known, bare, at = _OPTIONS[level], _BARE[level], argument.position
        name = argument.name
        hint = f"its options: {', '.join(known)}"
        if name is None:
            if number < len(bare):
                return bare[number]
            only = f"only {' and '.join(bare)} may be" if bare else "every option is"
            raise self.fail(f"{level}: {only} given {'without a' if bare else 'by'} name", at, hint)
        if name not in known:
            raise self.fail(f"{level} has no option {name!r}{_guess(name, known)}", at, hint)
        if name == "source" and argument.of is None:
            raise self.fail("source needs the name of a source", at, "like source 'truck-7' = 1 hour")
        if name != "source" and argument.of is not None:
            raise self.fail(f"{name} cannot be given for one source", at, f"write {name} = …")
        return name

    def _value(self, option: str, kind: str | tuple[str, ...], argument: Argument) -> Duration | float | str:
        """The value of an option, of the kind that it takes."""
        value, at = argument.value, argument.value_position
        if isinstance(kind, tuple):
            if isinstance(value, Token) and value.lower() in kind:
                return value.lower()
            raise self.fail(f"{option} cannot be {argument.told}", at, f"allowed are {options(kind)}")
        allowed = {
            _LENGTH: "it is a duration, like 5 minutes",
            _SHARE: "it is a share between 0 and 1, like 0.99 or 1%",
            _STEP: "it is a share from 0 (every change is told) to below 1, like 0.05 or 5%",
        }
        problem = self.fail(f"{option} cannot be {argument.told}", at, allowed[kind])
        if isinstance(value, Token) or (kind == _LENGTH and value.data == "percentage"):
            raise problem
        if kind == _LENGTH:
            return self.length(value)
        number = value.children[0]
        if not isinstance(number, Token):
            raise problem
        share = float(Fraction(number) / 100) if value.data == "percentage" else float(number)
        if not (0 < share < 1 or (share == 0 and kind == _STEP)):
            raise problem
        return share

    def _check_together(self, given: set[str], argument: Argument) -> None:
        for pair, why in _APART.items():
            if given.issuperset(pair):
                raise self.fail(f"{pair[0]} and {pair[1]} cannot go together", argument.position, f"{why}: use one")

    def _check_slack(self, given: Iterable[str], at: int) -> None:
        some = {"k", "recall", "max"}.intersection(given)
        if not some:
            raise self.fail("kslack needs k, or recall and max", at, "like kslack(5 minutes)")
        if len({"recall", "max"} & some) == 1:
            missing = "max" if "recall" in some else "recall"
            raise self.fail(
                f"kslack needs {missing} too", at, "recall and max go together: recall = 0.99, max = 1 hour"
            )


def _guess(word: str, known: Iterable[str]) -> str:
    near = get_close_matches(word, known, 1)
    return f" — did you mean {near[0]}?" if near else ""
