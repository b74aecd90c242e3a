"""Syntax errors in words: what was expected, what was found, and what was probably meant.

The parser says which terminals it could have gone on with; this module groups them into phrases that writers of
queries know. What the grammar only understands in order to refuse it is never offered.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from lark import Token
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from latecomer.errors import QueryError, options
from latecomer.query.words import CLAUSES, RESERVED
from latecomer.units import UNITS

# Where a value may begin, where one may go on, and what ends in neither.
_VALUE = {"NUMBER", "STRING", "NAME", "MINUS", "_LPAR"}
_VALUE_MORE = {"QUOTED", "MOMENT", "TRUE", "FALSE", "NULL", "NOT", "_LSQB"}
_OPERATORS = {"PLUS", "MINUS", "TIMES", "DIVIDE", "PERCENT", "COMPARE", "IN", "BETWEEN", "LIKE", "IS", "NOT", "_DOT"}
_PHRASES = {
    "_LPAR": "'('",
    "_RPAR": "')'",
    "_LSQB": "'['",
    "_RSQB": "']'",
    "_COMMA": "','",
    "_DOT": "'.'",
    "_EQUALS": "'='",
    "PERCENT": "'%'",
    "BANG": "'!'",
    "NAME": "a name",
    "NUMBER": "a number",
    "STRING": "text in single quotes",
    "COMPARE": "a comparison",
    "STRATEGY_NAME": "the name of a strategy",
    "_SAMPLED": "SAMPLED",
    "UNIT": "a unit of time",
    "$END": "the end of the query",
}
_WORD = re.compile(r"(\w+)\s*\Z")
_START = "a query starts with PATTERN, like PATTERN SEQ(Shelf s, Exit e) WITHIN 1 h"
_UNITS = ("seconds", "minutes", "hours", "days", *UNITS)


def explain(text: str, error: UnexpectedInput) -> QueryError:
    """The QueryError for what the parser could not read."""
    position = error.pos_in_stream or 0
    if isinstance(error, UnexpectedToken):
        token = error.token
        accepted = set(error.accepts or error.expected)
        if token.type == "$END":
            return _at_end(text, accepted)
        return _at_token(text, token, accepted)
    assert isinstance(error, UnexpectedCharacters)
    return _at_character(text, position)


def _at_end(text: str, accepted: set[str]) -> QueryError:
    if accepted == {"_PATTERN"}:
        return QueryError("the query is empty", hint=_START)
    problem = f"the query ends where {_expected(accepted)} should follow"
    return QueryError(problem, text=text, position=len(text.rstrip()))


def _at_token(text: str, token: Token, accepted: set[str]) -> QueryError:
    position, word = token.start_pos or 0, str(token)
    before = _WORD.search(text, 0, position)
    if "_DOT" in accepted and before is not None and before[1].upper() in CLAUSES:
        # A clause came too early and was taken for a name.
        position, word = before.start(1), before[1]
        return QueryError(f"expected a value or condition, found {word!r}", text=text, position=position)
    special = _special(token, accepted)
    if special is not None:
        return QueryError(special[0], text=text, position=position, hint=special[1])
    problem = f"expected {_expected(accepted)}, found {word!r}{_guess(word, accepted)}"
    return QueryError(problem, text=text, position=position, hint=_hint(token, accepted))


def _special(token: Token, accepted: set[str]) -> tuple[str, str] | None:
    """Mistakes that have a sentence of their own: problem and hint."""
    word = str(token)
    if word.upper() in CLAUSES and any(f"_{c}" in accepted for c in CLAUSES):
        order = " … ".join(CLAUSES)
        return f"{word.upper()} cannot stand here", f"clauses come in this order, each at most once: {order}"
    if word.upper() in RESERVED and "NAME" in accepted and not accepted >= _VALUE:
        return f"{word!r} is a keyword, and a name should stand here", f'a name like that is quoted: "{word}"'
    if word == "(" and "MINUS" in accepted:
        return "'(' cannot follow a value", "write an operator between the two"
    if word == "," and "_WHERE" in accepted:
        return "a pattern of several components is written SEQ(…)", "like SEQ(Shelf s, !Counter c, Exit e)"
    if token.type == "COMPARE" and "MINUS" in accepted:
        return "comparisons cannot be chained", "join two of them with AND, or write BETWEEN … AND …"
    return None


def _hint(token: Token, accepted: set[str]) -> str | None:
    if accepted == {"_PATTERN"}:
        return _START
    if token.type == "STRING" and "GROUP" in accepted:
        return 'a name is written bare, or in double quotes: "odd name"'
    if token.type == "STRING" and "NUMBER" in accepted:
        return "a duration is written without quotes, like 5 minutes"
    if token.type in ("NAME", "QUOTED") and "_AS" in accepted:
        return "the name of a field follows AS"
    return None


def _at_character(text: str, position: int) -> QueryError:
    character = text[position]
    problem, hint = f"{character!r} has no meaning in a query", None
    if character == "'":
        problem, hint = "this text has no end", "close it with '; a quote inside is written twice: 'it''s'"
    elif character == '"':
        problem, hint = "this name has no end", 'close it with "'
    elif character in "&|":
        problem, hint = f"{character!r} is not an operator of this language", "write AND or OR"
    elif character == ";":
        hint = "a text holds one query, and no semicolon ends it"
    return QueryError(problem, text=text, position=position, hint=hint)


def _guess(word: str, accepted: set[str]) -> str:
    """`` — did you mean WITHIN?`` when the word is close to one that could stand here."""
    keywords = {a.lstrip("_") for a in accepted} & RESERVED
    words = {k.lower(): k for k in sorted(keywords)}
    if "GROUP" in accepted:
        words["seq"] = "SEQ"
    if "UNIT" in accepted:
        words |= {u: u for u in _UNITS}
    near = get_close_matches(word.lower(), words, 1)
    return f" — did you mean {words[near[0]]}?" if near else ""


def _expected(accepted: Iterable[str]) -> str:
    """``an operator, WITHIN or RETURN``."""
    left = set(accepted)
    phrases: list[str] = []
    if left >= _VALUE:
        phrases.append("a value or condition" if "_LSQB" in left else "a value")
        left -= _VALUE | _VALUE_MORE
    elif "MINUS" in left:
        phrases.append("an operator")
        left -= _OPERATORS | {"_LPAR"}  # a function is not what anybody forgot here
    if "GROUP" in left:
        phrases.append("SEQ(…)")
    if "NAME" in left and ("GROUP" in left or "BANG" in left):
        phrases.append("an event type")
        left -= {"NAME", "GROUP", "QUOTED", "NOT"}
    left -= {"QUOTED"} if "NAME" in left else set()
    if "PLUS" in left or "_RPAR" in left:
        left -= {"PLUS", "_LSQB"}
    rank = {f"_{clause}": number for number, clause in enumerate(CLAUSES, 1)} | {"$END": 99}
    rest = sorted(left, key=lambda name: (rank.get(name, 0), name))
    return options([*phrases, *(_PHRASES.get(name, name.lstrip("_")) for name in rest)])
