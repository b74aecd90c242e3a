"""Streams as a line of text, for tests that tell a story: ``"a3 c5 <C,10> b11"``.

``a3`` is an event of type A at time 3 with id "a3"; ``b4.x=2,k=u`` has attributes; ``a1+b2`` come in one batch;
``<C,10>`` is punctuation (no C at or before 10 will come), ``<*,10>`` for all types; ``@12`` says that the clock
reached 12 elsewhere; ``.`` is the end of the stream. The answer to each word is a list of changes: ``"+a3 b11"`` for
an insertion, ``"-a3 b11"`` for a deletion.
"""

import re

import pyarrow as pa

import latecomer as lc

STREAM = lc.Stream(type="type", ts="ts", id="id", unit="s")
WORD = re.compile(r"([a-z])(-?\d+)('*)(?:\.(.*))?")


def event(word):
    kind, ts, primes, given = WORD.fullmatch(word).groups()
    attributes = dict(pair.split("=") for pair in given.split(",")) if given else {}
    row = {"id": kind + ts + primes, "type": kind.upper(), "ts": int(ts), "k": attributes.get("k")}
    return row | {"x": int(attributes["x"]) if "x" in attributes else None}


def batch(words):
    """All events of ``words`` as one Arrow table."""
    rows = [event(word) for word in words.split()]
    columns = {"id": pa.string(), "type": pa.string(), "ts": pa.int64(), "k": pa.string(), "x": pa.int64()}
    return pa.table({c: pa.array([r[c] for r in rows], t) for c, t in columns.items()})


def start(text, level, stream=STREAM):
    return lc.Runtime(stream, [lc.Query(text, name="q", level=level)])


def take(runtime, word):
    if word == ".":
        return runtime.finish()
    if word[0] == "@":
        return runtime.observe(int(word[1:]))
    if word[0] == "<":
        kind, ts = word.strip("<>").split(",")
        return runtime.punctuate(int(ts), type=None if kind == "*" else kind)
    return runtime.process(batch(word.replace("+", " ")))


def changes(out):
    return [f"{'+' if r['op'] == 'insert' else '-'}{' '.join(map(str, r['events']))}" for r in out.changes.to_pylist()]


def late(out):
    return [(r["id"], r["reason"], r["late_by"]) for r in out.late.to_pylist()]


def tell(runtime, words):
    """What each word changes, without the words that change nothing: ``{"b11": ["+a7 b11"], "c9": ["-a7 b11"]}``."""
    answers = {}
    for word in words.split():
        answers.setdefault(word, []).extend(changes(take(runtime, word)))
    return {word: sorted(answer) for word, answer in answers.items() if answer}
