"""What twins take and give."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]

#: ANDed with a little-endian word, ``TAIL[n]`` keeps its first n bytes.
TAIL = np.array([(1 << (8 * n)) - 1 for n in range(9)], np.uint64)


def words_in(data: Array) -> U64:
    """The little-endian word that begins at each byte but the last seven."""
    return np.ndarray((len(data) - 7,), "<u8", buffer=data, strides=(1,))
