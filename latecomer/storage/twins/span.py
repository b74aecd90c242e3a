"""Spans: the fields of a growable array that compiled code may look at and move."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class Span:
    """The live part of a growable array: the values of ``_data`` from ``_start`` to ``_end``.

    ``_next``: where they are on their way to, None: nowhere; ``_limit``: the end from which on they must go over to
    other memory; ``_spare``: so many values behind the end are memory that may be read.
    """

    __slots__ = ("_data", "_end", "_limit", "_next", "_spare", "_start")

    _data: npt.NDArray[np.generic]
    _next: Any
    _start: int
    _end: int
    _limit: int
    _spare: int
