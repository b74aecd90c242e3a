"""The catalogue of wrong queries: each is refused with exactly the message that ``query_errors.txt`` holds."""

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from latecomer.consistency.levels import Aggressive, Conservative, KSlack
from latecomer.errors import ConfigError, QueryError
from latecomer.query import Query, absent, event, seq
from latecomer.query.parse import parse
from latecomer.stream import Stream

SCHEMA = pa.schema(
    {
        "type": pa.string(),
        "ts": pa.timestamp("us"),
        "tag": pa.string(),
        "price": pa.int64(),
        "sold": pa.bool_(),
        "seen": pa.list_(pa.string()),
        "due": pa.timestamp("s"),
    }
)


def catalogue():
    blocks = (Path(__file__).parent / "query_errors.txt").read_text(encoding="utf-8").split("=" * 40 + "\n")[1:]
    return [tuple(part.removesuffix("\n") for part in block.split("-" * 40 + "\n")) for block in blocks]


@pytest.mark.parametrize(("text", "message"), catalogue())
def test_a_wrong_query_is_refused_in_these_words(text, message):
    with pytest.raises(QueryError) as refused:
        Query(text).check(Stream(), SCHEMA)
    assert str(refused.value) == message


def test_the_catalogue_is_large_and_says_nothing_twice():
    texts = [text for text, _ in catalogue()]
    assert len(set(texts)) == len(texts) >= 100


def test_line_and_column_are_attributes_of_the_error():
    with pytest.raises(QueryError) as refused:
        parse("PATTERN SEQ(A a, B b)\nWHERE a.x = 1 + + 2\nWITHIN 1 h")
    assert (refused.value.line, refused.value.column) == (2, 17)


def test_no_message_shows_the_parsers_own_words():
    for _, message in catalogue():
        assert not any(word in message for word in ("_LPAR", "_RPAR", "COMPARE", "$END", "Token", "QUOTED", "STRING"))


QUERY = "PATTERN SEQ(A a, B b) WITHIN 1 h"


def test_two_levels_must_be_equal():
    text = QUERY + " CONSISTENCY kslack(1 min)"
    assert Query(text, level=KSlack("60 s")).level == KSlack("1 min")
    with pytest.raises(QueryError, match=r"two consistency levels: the text says kslack\(1 min\), level= says conserv"):
        Query(text, level=Conservative())


def test_what_is_no_level_no_name_and_no_text_is_refused():
    with pytest.raises(ConfigError, match=r"'kslack' is not a consistency level\. Choose one"):
        Query(QUERY, level="kslack")
    with pytest.raises(QueryError, match="'' is not a name for a query"):
        Query(QUERY, name="", level=Conservative())
    with pytest.raises(QueryError, match=r"a query is text, not int; in Python, build one with latecomer\.query\.seq"):
        Query(5)


@pytest.mark.parametrize("deep", ["-(" * 5000 + "a.x" + ")" * 5000, "NOT " * 5000 + "a.x", " + ".join(["a.x"] * 101)])
def test_nesting_without_end_is_refused_and_does_no_harm(deep):
    with pytest.raises(QueryError, match=r"nested too deeply"):
        Query(f"PATTERN SEQ(A a, B b) WHERE {deep} = 1 WITHIN 1 h", level=Conservative())


def test_the_deepest_query_still_works():
    text = f"PATTERN SEQ(A a, B b) WHERE {' + '.join(['a.x'] * 99)} = 1 WITHIN 1 h"
    query = Query(text, level=Conservative())
    assert Query(query.text) == query == pickle.loads(pickle.dumps(query))
    assert len({query, Query(query.text)}) == 1


A, B = event("A", "a"), event("B", "b")


def built(*conditions, **fields):
    return seq(A, B).where(*conditions).within(5).returns(**fields).query(level=Conservative())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: seq(A, B).query(level=Conservative()), "WITHIN is missing"),
        (lambda: built(A.x + "text" > 1), "cannot compute a value of unknown type \\+ text: a\\.x \\+ 'text'"),
        (lambda: built(event("C", "c").x > 1), "unknown variable 'c'\n  declared in PATTERN: a, b"),
        (lambda: built(query=A.x), "a field cannot be called 'query'"),
        (lambda: built(1 < A.x < 3), "true or false only when events come"),
        (lambda: built(A.x > 1 and B.x > 1), "true or false only when events come"),
        (lambda: built(A.x == None), r"write \.is_null\(\)"),  # noqa: E711
        (lambda: built(A.x > float("nan")), "nan cannot stand in a query"),
        (lambda: built(A.x > 2**63), "too large for an integer of 64 bits"),
        (lambda: built(A.x > object()), "allowed are attributes, and constants"),
        (lambda: built(A > 1), "not supported between"),
        (lambda: built(B.x == A), "A a is an event, not a value"),
        (lambda: built(A.x.isin()), "give at least one choice"),
        (lambda: built(A.x.isin([])), "give at least one choice"),
        (lambda: built(A.x.like(5)), "LIKE takes a text, not 5"),
        (lambda: event("A").x, r"has no variable.*\n  give it one, like event\('A', 'a'\)"),
        (lambda: event(""), "'' is not the name of an event type"),
        (lambda: event("A", 5), "5 is not the name of a variable"),
        (lambda: A[""], "'' is not the name of an attribute"),
        (lambda: seq(A, "B"), r"seq\(\) takes events, not 'B'"),
        (lambda: seq(A).same(5), r"same\(\) takes names of attributes, not 5"),
        (lambda: seq(absent("A", "a")).within(5).query(level=Conservative()), "no positive component"),
        (lambda: seq(A, B).within("5 parsecs"), "'parsecs' is not a unit of time"),
        (lambda: seq(A, B).within(5).query(level=None), "None is not a consistency level"),
        (lambda: seq(A, B).within(5).query(level=Aggressive(1), name=" "), "is not a name for a query"),
    ],
)
def test_a_wrong_query_built_in_python_is_refused(build, message):
    with pytest.raises((QueryError, ConfigError, TypeError), match=message):
        build()
