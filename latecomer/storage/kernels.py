"""Kernels: the inner loops of storage, compiled where the package was built with a compiler, else in NumPy.

Rule: each function of :mod:`latecomer.storage.twins` says in NumPy what its twin in ``native/`` does one row at a time,
several times faster. That one takes its place when it was built and :data:`SWITCH` does not say ``numpy``; nobody who
calls can tell them apart (``tests/test_kernels.py`` compares the two).
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from latecomer.storage.twins.filters import fuse, fuse_build, fuse_cells, fuse_marks, held, ranks, sift, sow
from latecomer.storage.twins.hashes import (
    combine,
    first_words,
    hash_texts,
    match_digits,
    mix,
    scramble,
    text_numbers,
    text_words,
)
from latecomer.storage.twins.ids import carry, gone_over, highs_of, homes, marks_of, put, refs_at, take_out, words_of
from latecomer.storage.twins.intake import judge, pick
from latecomer.storage.twins.payload import below, equal_texts, equal_words, reached
from latecomer.storage.twins.runs import (
    Arranged,
    Run,
    arrange,
    arrange_each,
    codes_in,
    join,
    merge,
    merge_on,
    nearest,
    stretches,
)
from latecomer.storage.twins.span import Span

__all__ = [
    "ALONE",
    "COMPILED",
    "SWITCH",
    "TWINS",
    "Arranged",
    "Recent",
    "Run",
    "Span",
    "Waiting",
    "arrange",
    "arrange_each",
    "below",
    "carry",
    "codes_in",
    "combine",
    "equal_texts",
    "equal_words",
    "first_words",
    "follow",
    "follow_each",
    "fuse",
    "fuse_build",
    "fuse_cells",
    "fuse_marks",
    "gone_over",
    "hash_texts",
    "held",
    "highs_of",
    "homes",
    "join",
    "joint",
    "judge",
    "marks_of",
    "match_digits",
    "merge",
    "merge_on",
    "mix",
    "nearest",
    "pick",
    "plan",
    "program",
    "put",
    "ranks",
    "reached",
    "read_rows",
    "refs_at",
    "resume",
    "scramble",
    "sift",
    "sow",
    "step",
    "stretches",
    "take_out",
    "text_numbers",
    "text_words",
    "words_of",
    "write_changes",
]

#: What there is a compiled twin of.
TWINS = (
    "scramble",
    "combine",
    "hash_texts",
    "text_words",
    "text_numbers",
    "match_digits",
    "put",
    "take_out",
    "carry",
    "arrange",
    "merge",
    "merge_on",
    "join",
    "nearest",
    "equal_words",
    "equal_texts",
    "fuse",
    "sift",
    "sow",
    "fuse_build",
    "held",
    "ranks",
    "pick",
    "arrange_each",
    "judge",
    "reached",
    "below",
    "Span",
)

#: What is there in compiled form alone; None where it is not. What it means is said by modules of ``runtime/``.
ALONE = (
    "program",
    "follow",
    "follow_each",
    "resume",
    "read_rows",
    "write_changes",
    "plan",
    "step",
    "joint",
    "Recent",
    "Waiting",
)

#: The environment variable that chooses: ``numpy``, ``compiled`` (an error where it was not built), or nothing.
SWITCH = "LATECOMER_KERNEL"

#: Join orders as programs, and following them, one (``native/follow.h``) or several (``native/answers.h``); None where
#: kernels are not compiled. What they mean is said by :mod:`latecomer.runtime.sequence`.
program: Any = None
follow: Any = None
follow_each: Any = None
resume: Any = None

#: Reads a whole record batch in one pass (``native/intake.h``); None: it takes one column after another.
read_rows: Any = None

#: Makes a whole record batch of changes (``native/output.h``); None: it takes one column after another.
write_changes: Any = None

#: A batch's whole way through an engine (``native/plan.h``, ``native/step.h``), the events that it brings to a store
#: (``native/recent.h``), and the matches that it holds (``native/waiting.h``); None: it takes one kernel after another,
#: as :mod:`latecomer.runtime.express` does. ``joint`` is for steps of several engines that read one batch
#: (``native/joint.h``).
plan: Any = None
step: Any = None
joint: Any = None
Recent: Any = None
Waiting: Any = None


def _choose(wanted: str) -> bool:
    """Let compiled twins take their places; whether they have."""
    if wanted not in ("", "numpy", "compiled"):
        raise ValueError(
            f"{SWITCH}={wanted!r} is not known: give numpy, compiled, or nothing for the faster one there is"
        )
    if wanted == "numpy":
        return False
    try:
        native = importlib.import_module("latecomer.storage._compiled")
    except ImportError:
        if wanted == "compiled":
            raise
        return False
    for name in TWINS:
        globals()[name] = getattr(native, name, globals()[name])  # one that was built before knows fewer
    for name in ALONE:
        globals()[name] = getattr(native, name, None)
    return True


#: Whether the compiled kernels are in use.
COMPILED = _choose(os.environ.get(SWITCH, ""))
