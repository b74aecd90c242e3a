"""Parser: text -> :class:`~latecomer.query.syntax.Draft`. It knows the shape of queries, not what makes sense.

What the grammar understands but nothing can run yet (nesting, AND and OR of patterns, Kleene +) is refused here, each
with its own sentence; syntax errors are put into words by :mod:`latecomer.query.mistakes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from fractions import Fraction
from functools import cache
from importlib.resources import files
from math import isinf

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput

from latecomer.consistency.levels import Level
from latecomer.errors import QueryError
from latecomer.query.expressions import (
    And,
    Arithmetic,
    Attribute,
    Between,
    Call,
    Comparison,
    Expr,
    In,
    IsNull,
    Like,
    Literal,
    Negative,
    Not,
    Or,
)
from latecomer.query.levels import Argument, LevelReader
from latecomer.query.mistakes import explain
from latecomer.query.plan import Confidence
from latecomer.query.syntax import DEFAULT_STRATEGY, Draft, Returned, Step
from latecomer.query.words import (
    FUNCTIONS,
    INT_MAX,
    INT_MIN,
    read_duration,
    read_length,
    read_moment,
    unquote,
    write_name,
    write_string,
)
from latecomer.units import Duration, canonical_unit

Node = Tree[Token]

_GROUPS = {
    "SEQ": "write all components in one SEQ(…)",
    "AND": "write one query for each order of the events",
    "OR": "write one query for each alternative",
}


@cache
def _grammar() -> Lark:
    text = files("latecomer.query").joinpath("grammar.lark").read_text(encoding="utf-8")
    return Lark(text, parser="lalr", lexer="contextual", propagate_positions=True, maybe_placeholders=False)


def parse(text: str) -> Draft:
    """Read a query; raises QueryError with line, caret and what is allowed.

    >>> parse("PATTERN SEQ(A a, !B, C c) WHERE [k] WITHIN 5 minutes").key
    ('k',)
    """
    if not isinstance(text, str):
        raise QueryError(f"a query is text, not {type(text).__name__}; in Python, build one with latecomer.query.seq")
    try:
        return _Reader(text).draft(_grammar().parse(text))
    except UnexpectedInput as error:
        raise explain(text, error) from None
    except RecursionError:
        raise QueryError("an expression is nested too deeply", hint="use fewer parentheses and shorter sums") from None


@dataclass
class _Reader:
    """One walk over the syntax tree. ``names`` are the variables that PATTERN declares, for the hints in messages."""

    text: str
    names: list[str] = field(default_factory=list)
    key: list[str] = field(default_factory=list)

    def fail(self, problem: str, at: int, hint: str | None = None) -> QueryError:
        return QueryError(problem, text=self.text, position=at, hint=hint)

    def draft(self, tree: Node) -> Draft:
        clauses: dict[str, Node] = {str(clause.data): clause for clause in _trees(tree)}
        steps = tuple(self.steps(_only(clauses["pattern"])))
        self.names = [step.var for step in steps if step.var is not None]
        conjuncts = tuple(self.conjuncts(_only(clauses["where"]))) if "where" in clauses else ()
        within = _only(clauses["within"]) if "within" in clauses else None
        strategy = _token(clauses["strategy"]) if "strategy" in clauses else None
        consistency = clauses.get("consistency")
        return Draft(
            steps=steps,
            key=tuple(dict.fromkeys(self.key)),
            conjuncts=conjuncts,
            window=None if within is None else self.length(within),
            window_position=-1 if within is None else _start(within),
            returns=tuple(self.returned(item) for item in _trees(clauses["returns"])) if "returns" in clauses else (),
            strategy=DEFAULT_STRATEGY if strategy is None else strategy.lower().replace("_", "-"),
            strategy_position=-1 if strategy is None else _at(strategy),
            confidence=self.confidence(clauses["confidence"]) if "confidence" in clauses else None,
            confidence_position=_start(next(_trees(clauses["confidence"]))) if "confidence" in clauses else -1,
            level=None if consistency is None else self.level(consistency),
            level_position=-1 if consistency is None else _start(consistency),
        )

    # PATTERN

    def steps(self, item: Node) -> Iterator[Step]:
        inner = item.children[-1]
        assert isinstance(inner, Tree)
        if inner.data == "single":
            yield self.step(item)
            return
        operator = _token(inner).upper()
        if len(item.children) > 1 or operator != "SEQ":
            negated = len(item.children) > 1
            hint = "'!' goes before a single event type" if negated else _GROUPS[operator]
            raise self.fail(f"{'!' * negated}{operator}(…) as a pattern is not supported yet", _start(item), hint)
        for part in _trees(inner):
            nested = part.children[-1]
            assert isinstance(nested, Tree)
            if nested.data == "group":
                group = _token(nested).upper()
                raise self.fail(f"{group}(…) inside SEQ(…) is not supported yet", _start(part), _GROUPS[group])
            yield self.step(part)

    def step(self, item: Node) -> Step:
        sign, single = item.children[0], item.children[-1]
        assert isinstance(single, Tree)
        if isinstance(sign, Token) and sign.type == "NOT":
            raise self.fail("a component that must not occur is marked with '!'", _at(sign), "like !Counter c")
        tokens = [t for t in single.children if isinstance(t, Token)]
        plus = next((t for t in tokens if t.type == "PLUS"), None)
        if plus is not None:
            raise self.fail(
                "Kleene closure (+) is not supported yet", _at(plus), "name each component: SEQ(A a1, A a2, B b)"
            )
        names = [self.name(t) for t in tokens]
        return Step(names[0], names[1] if len(names) > 1 else None, len(item.children) > 1, _start(item))

    def name(self, token: Token) -> str:
        name = unquote(token) if token.type == "QUOTED" else str(token)
        if not name:
            raise self.fail('"" is not a name', _at(token), "write the name between the double quotes")
        return name

    # WHERE

    def conjuncts(self, node: Node) -> Iterator[Expr]:
        """Split at the top-level ANDs; the equivalences found on the way go to ``self.key``."""
        if node.data == "and_":
            for part in _trees(node):
                yield from self.conjuncts(part)
        elif node.data == "equivalence":
            self.key += [self.name(t) for t in node.children if isinstance(t, Token)]
        else:
            yield self.expr(node)

    def expr(self, node: Node) -> Expr:
        at = _start(node)
        parts = list(_trees(node))
        match str(node.data):
            case "and_":
                return And(tuple(map(self.expr, parts)), position=at)
            case "or_":
                return Or(tuple(map(self.expr, parts)), position=at)
            case "not_":
                return Not(self.expr(parts[0]), position=at)
            case "comparison":
                sign = _token(node)
                if sign == "==":
                    raise self.fail("'==' is not a comparison of this language", _at(sign), "equality is a single =")
                op = "<>" if sign == "!=" else str(sign)
                return Comparison(op, self.expr(parts[0]), self.expr(parts[1]), position=_at(sign))
            case "arithmetic":
                sign = _token(node)
                left, right = map(self.expr, parts)
                return Arithmetic(str(sign), left, right, position=_at(sign))
            case "in_" | "between" | "like" | "is_null":
                return self.predicate(node, parts)
            case "negative":
                if parts[0].data == "number":
                    return self.number("-" + _token(parts[0]), at)
                return Negative(self.expr(parts[0]), position=at)
            case "attribute":
                var, name = (self.name(t) for t in node.children if isinstance(t, Token))
                return Attribute(var, name, position=at)
            case "bare":
                raise self.bare(_token(node))
            case "call":
                return self.call(_token(node), parts)
            case "equivalence":
                raise self.fail(
                    "[…] may only stand on its own in WHERE, or joined to the rest by AND",
                    at,
                    "it says that all components agree; elsewhere write the comparison out, like a.tag = b.tag",
                )
            case _:
                return self.constant(node)

    def predicate(self, node: Node, parts: list[Node]) -> Expr:
        """IN, BETWEEN, LIKE and IS NULL, each with its NOT."""
        tokens = [t for t in node.children if isinstance(t, Token)]
        at = _at(tokens[0])
        operand, *others = map(self.expr, parts)
        found: Expr
        match str(node.data):
            case "in_":
                found = In(operand, tuple(others), position=at)
            case "between":
                found = Between(operand, others[0], others[1], position=at)
            case "like":
                found = Like(operand, unquote(tokens[-1]), position=at)
            case _:
                found = IsNull(operand, position=at)
        return Not(found, position=at) if any(t.type == "NOT" for t in tokens) else found

    def constant(self, node: Node) -> Literal:
        at = _start(node)
        match str(node.data):
            case "number":
                return self.number(_token(node), at)
            case "string":
                return Literal(unquote(_token(node)), position=at)
            case "duration":
                return Literal(self.duration(node), position=at)
            case "moment":
                token = _token(node)
                written = token[token.index("'") :]
                try:
                    return Literal(read_moment(unquote(written)), position=at)
                except ValueError as error:
                    raise self.fail(f"{written} is not a time", at, str(error)) from None
            case kind:
                return Literal({"true": True, "false": False, "null": None}[kind], position=at)

    def number(self, digits: str, at: int) -> Literal:
        if not any(c in ".eE" for c in digits):
            # 64 bits have at most 19 digits; longer texts are not even converted.
            whole = int(digits) if len(digits) < 40 else INT_MAX + 1
            if not INT_MIN <= whole <= INT_MAX:
                allowed = f"allowed are {INT_MIN} to {INT_MAX}"
                raise self.fail(f"{digits} is too large for an integer of 64 bits", at, allowed)
            return Literal(whole, position=at)
        value = float(digits)
        if isinf(value):
            raise self.fail(f"{digits} is too large for a number", at, "allowed is up to 1.797e308")
        return Literal(value, position=at)

    def bare(self, token: Token) -> QueryError:
        name, at = self.name(token), _at(token)
        some = self.names[0] if self.names else None
        write = f"write variable.attribute, like {some}.{write_name(name)}" if some else "give the component a variable"
        if name in self.names:
            return self.fail(f"{name!r} is an event, not a value", at, f"name one of its attributes, like {name}.ts")
        return self.fail(
            f"{token} stands alone: it does not say of which event",
            at,
            f"{write}; text goes in single quotes: {write_string(name)}",
        )

    def call(self, token: Token, arguments: list[Node]) -> Call:
        """A function of the match as a whole, or of one of its events."""
        name, at, some = token.lower(), _at(token), self.names[0] if self.names else "a"
        if name not in FUNCTIONS:
            near = get_close_matches(name, FUNCTIONS, 1)
            guess = f" — did you mean {near[0]}(…)?" if near else ""
            known = f"there are only confidence(), earliest({some}) and latest({some}), in RETURN"
            raise self.fail(f"{str(token)!r} is not a function{guess}", at, f"{known}; write it with operators")
        if name == "confidence":
            if arguments:
                raise self.fail("confidence() takes nothing: it speaks of the whole match", _start(arguments[0]))
            return Call(name, None, position=at)
        if len(arguments) != 1 or arguments[0].data != "bare":
            place = _start(arguments[0]) if arguments else at
            raise self.fail(f"{name}(…) takes one event, by its variable", place, f"like {name}({some})")
        return Call(name, self.name(_token(arguments[0])), position=at)

    # WITHIN, RETURN, CONFIDENCE, CONSISTENCY

    def confidence(self, node: Node) -> Confidence:
        least, *error = _trees(node)
        sign = next((t for t in node.children if isinstance(t, Token)), None)
        if sign is None or sign not in (">", ">="):
            found = "without a comparison" if sign is None else f"with {str(sign)!r}"
            place = _start(least) if sign is None else _at(sign)
            example = f">= {''.join(map(str, least.children))}"
            raise self.fail(f"CONFIDENCE {found} says nothing", place, f"write >= or >, like CONFIDENCE {example}")
        return Confidence(self.share(least), sign == ">=", self.share(error[0]) if error else None)

    def share(self, node: Node) -> float:
        """A number from 0 to 1, or a percentage."""
        digits = "".join(t for t in node.children if isinstance(t, Token))
        value = float(Fraction(digits[:-1]) / 100) if digits.endswith("%") else float(digits)
        if not 0 <= value <= 1:
            raise self.fail(f"{digits} is no probability", _start(node), "allowed are 0 to 1, or 0% to 100%")
        return value

    def length(self, node: Node) -> Duration:
        child = node.children[0]
        if isinstance(child, Tree):
            return self.duration(child)
        try:
            return Duration(read_length(child), plain=True)
        except ValueError as error:
            raise self.fail(str(error), _at(child), "write the digits out, like 1500") from None

    def duration(self, node: Node) -> Duration:
        tokens = [str(t) for t in node.children]
        try:
            return read_duration(list(zip(tokens[::2], map(canonical_unit, tokens[1::2]), strict=True)))
        except ValueError as error:
            raise self.fail(str(error), _start(node), "write the digits out, like 1500 ms") from None

    def returned(self, node: Node) -> Returned:
        alias = next((self.name(t) for t in node.children if isinstance(t, Token)), None)
        return Returned(self.expr(next(_trees(node))), alias, _start(node))

    def level(self, node: Node) -> Level:
        word = _token(node)
        return LevelReader(self.fail, self.length).read(word, [self.argument(part) for part in _trees(node)])

    def argument(self, node: Node) -> Argument:
        *label, value = node.children
        words = [str(token) for token in label if isinstance(token, Token)]
        return Argument(
            name=words[0].lower() if words else None,
            of=unquote(words[1]) if len(words) > 1 else None,
            value=value,
            position=_start(node),
        )


def _trees(node: Node) -> Iterator[Node]:
    return (child for child in node.children if isinstance(child, Tree))


def _only(node: Node) -> Node:
    return next(_trees(node))


def _token(node: Node) -> Token:
    return next(child for child in node.children if isinstance(child, Token))


def _start(node: Node) -> int:
    return int(node.meta.start_pos)


def _at(token: Token) -> int:
    return token.start_pos or 0
