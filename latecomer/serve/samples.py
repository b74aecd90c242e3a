"""What the live page may show of a stream of any size: samples of bounded number and size.

Rules: a value from outside becomes a short text or a finite number before it is kept; a list never has more items, nor
more bytes, than it was given.
"""

from __future__ import annotations

import json
import math
from collections import deque
from datetime import date
from typing import Any

import numpy as np

from latecomer.storage.columns import I64

#: Characters of a text that are shown, unless said otherwise.
LETTERS = 64


def clip(value: Any, most: int = LETTERS) -> str:
    """A value from outside as a short text that is valid UTF-8.

    >>> clip("x" * 100, 8), clip(b"caf\\xe9"), clip(3)
    ('xxxxxxx…', 'caf�', '3')
    """
    if isinstance(value, bytes):
        value = value[: 4 * most].decode("utf-8", "replace")
    text = str(value)
    text = text if len(text) <= most else text[: most - 1] + "…"
    return text.encode("utf-8", "replace").decode()


def plain(value: Any, most: int = LETTERS) -> Any:
    """A value from outside as JSON has it: numbers that browsers can hold stay, all others become texts.

    >>> plain(1.5), plain(float("nan")), plain(None), plain(2**60), plain([1, 2])
    (1.5, 'nan', None, '1152921504606846976', '[1, 2]')
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return clip(value.isoformat() if isinstance(value, date) else value, most)


def size(item: Any) -> int:
    """Bytes of an item as JSON."""
    return len(json.dumps(item, ensure_ascii=False, separators=(",", ":")).encode()) + 1


class Tail:
    """The newest items of one kind, at most ``keep``, each with the number of the call that brought it.

    >>> tail = Tail(3)
    >>> for number in range(1, 6): tail.add(number, f"item {number}")
    >>> tail.since(0, 10**3), tail.since(4, 10**3), tail.since(0, 25)
    (['item 3', 'item 4', 'item 5'], ['item 5'], ['item 4', 'item 5'])
    """

    def __init__(self, keep: int) -> None:
        self._items: deque[tuple[int, Any, int]] = deque(maxlen=keep)

    def __len__(self) -> int:
        return len(self._items)

    def add(self, number: int, item: Any) -> None:
        """Append an item; ``number`` never falls."""
        self._items.append((number, item, size(item)))

    def since(self, number: int, budget: int) -> list[Any]:
        """Those after ``number``, in order; of too many the newest that fit ``budget`` bytes."""
        chosen = []
        for at, item, weight in reversed(self._items):
            budget -= weight
            if at <= number or budget < 0:
                break
            chosen.append(item)
        return chosen[::-1]


def pick(n: int, weights: I64, most: int) -> I64:
    """Which of ``n`` rows to show: all, or some at even distances and those of the largest weight; ascending.

    >>> pick(3, np.zeros(3, np.int64), 6).tolist()
    [0, 1, 2]
    >>> pick(100, np.where(np.arange(100) == 41, 7, 0), 6).tolist()[1:]
    [33, 41, 66, 99]
    """
    if n <= most:
        return np.arange(n)
    heavy = most // 3
    spread = np.linspace(0, n - 1, most - heavy).astype(np.int64)
    special = np.argpartition(weights, n - heavy)[n - heavy :]
    return np.unique(np.concatenate([spread, special[weights[special] > 0]]))
