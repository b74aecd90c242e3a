"""Spill: what a user says of state beyond memory, and what an engine gets of it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from latecomer.errors import ConfigError
from latecomer.storage.pager import Pager
from latecomer.units import Duration, DurationLike

#: More than this many late events of one slice wait before its frames are read. Measured in docs/state.md.
BATCH = 4_096

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_BYTES = {"": 1, "b": 1}
_BYTES |= {f"{p}b": 1000 ** (i + 1) for i, p in enumerate("kmgt")}
_BYTES |= {f"{p}ib": 1024 ** (i + 1) for i, p in enumerate("kmgt")}
_UNITS = "B, kB, KiB, MB, MiB, GB, GiB, TB or TiB"

#: The least that a runtime works with: a few batches and their candidates.
LEAST = 1 << 20


@dataclass(frozen=True, slots=True)
class Spill:
    """Where state goes that does not fit memory, and where versions of it are kept.

    Args:
        uri: a local folder, or any URI that pyarrow.fs or fsspec opens (``"s3://bucket/folder"``). One runtime at a
            time writes it; who opens it later takes over.
        keep: how many versions stay, 1 or more.
        batch: late events of one slice of event time that may wait before what they need is read from the folder; 0:
            none waits.
        wait: how far the clock may move while a late event waits, a duration; None: the longest window, or a quarter of
            the time that state is kept, whichever is longer.

    >>> Spill("state", keep=3).keep
    3
    """

    uri: str | os.PathLike[str]
    keep: int = 2
    batch: int = BATCH
    wait: DurationLike | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.uri, (str, os.PathLike)) or not os.fspath(self.uri):
            raise ConfigError(f"Spill(uri={self.uri!r}): give a folder, or a URI like 's3://bucket/folder'")
        if "\0" in str(self.uri):
            raise ConfigError(f"Spill(uri={self.uri!r}) has a zero character: give a name that a folder can have")
        for name, least in (("keep", 1), ("batch", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"Spill({name}={value!r}): give a whole number of at least {least}")
        if self.wait is not None:
            Duration.of(self.wait)

    @classmethod
    def of(cls, value: str | os.PathLike[str] | Spill) -> Spill:
        """A folder or URI with the defaults, or what was given."""
        return value if isinstance(value, Spill) else cls(value)


@dataclass(frozen=True, slots=True)
class Spilling:
    """What an engine needs: its pager, the budget in bytes (None: no limit), and the two numbers of :class:`Spill`."""

    pager: Pager
    budget: int | None = None
    batch: int = BATCH
    wait: Duration | None = None


def memory_size(value: int | str) -> int:
    """Bytes, as a number or as text like ``"512 MiB"``. Raises ConfigError for anything else, and below 1 MiB.

    >>> memory_size("1.5 GiB")
    1610612736
    """
    size = -1
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str) and (found := _SIZE.fullmatch(value)) and found[2].lower() in _BYTES:
        size = int(float(found[1]) * _BYTES[found[2].lower()])
    if size < 0:
        raise ConfigError(f"memory={value!r}: give bytes, or text like '512 MiB' or '2 GB', in {_UNITS}")
    if size < LEAST:
        raise ConfigError(f"memory={value!r} is {size} bytes: at least 1 MiB is needed to work with")
    return size
