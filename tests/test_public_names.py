"""The public names: what a user may import, pinned, so that nothing comes or goes by accident."""

from __future__ import annotations

import pytest

import latecomer
from latecomer import errors

PUBLIC = [
    "Aggressive",
    "BoundedDelay",
    "ConfigError",
    "Conservative",
    "EndOfInput",
    "Heartbeats",
    "KSlack",
    "LatecomerError",
    "MissingDependency",
    "Output",
    "Query",
    "QueryError",
    "Runtime",
    "Schedule",
    "SchemaError",
    "SequenceNumbers",
    "SourcesInOrder",
    "Spill",
    "StateError",
    "Stream",
    "__version__",
    "absent",
    "confidence",
    "earliest",
    "event",
    "latest",
    "seq",
]

#: Methods and attributes of what users hold; the options of streams and levels are the business of their own tests.
MEMBERS = {
    "Runtime": [
        "advance", "checkpoint", "clock", "close", "counters", "drop", "explain", "finish", "freeze", "narrow",
        "observe", "open", "process", "punctuate", "reject", "residue", "restore", "resume", "snapshot",
        "stream_pieces",
    ],
    "Output": ["changes", "late"],
    "Query": ["check", "from_plan", "level", "name", "plan", "source", "text"],
}  # fmt: skip


def test_the_names_of_the_package():
    assert latecomer.__all__ == PUBLIC
    assert all(hasattr(latecomer, name) for name in PUBLIC)


@pytest.mark.parametrize("name", MEMBERS)
def test_the_members_of_a_class(name):
    kind = getattr(latecomer, name)
    assert sorted(member for member in dir(kind) if not member.startswith("_")) == MEMBERS[name]


def test_each_public_thing_says_what_it_is():
    for name in PUBLIC:
        if name != "__version__":
            assert getattr(latecomer, name).__doc__, name


def test_every_error_has_one_root():
    """Whoever catches LatecomerError catches all that is raised on purpose."""
    found = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(found) == 6
    assert all(issubclass(kind, latecomer.LatecomerError) for kind in found)
