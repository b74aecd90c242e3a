"""Versions of a runtime in its state folder: which there are, and what may be written of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from latecomer.errors import ConfigError, StateError
from latecomer.runtime.spill import Spill
from latecomer.storage.folder import StateFolder


def fresh_folder(spill: Spill) -> StateFolder:
    """The state folder to begin in, not claimed yet. Raises StateError where there is a state already."""
    folder = StateFolder(spill.uri, keep=spill.keep)
    if versions := folder.versions():
        raise StateError(
            f"the folder {folder.shown!r} holds a state, up to version {versions[-1]}: go on with Runtime.open(…), or "
            "give an empty folder"
        )
    return folder


def version_number(number: Any) -> int:
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < 0:
        raise ConfigError(
            f"number={number!r}: versions are numbered 0, 1, 2 …: give a whole number, or None for the next"
        )
    return int(number)


def plain_note(note: Any) -> dict[str, Any]:
    """A note as it will be when it is read again."""
    if note is None:
        return {}
    if not isinstance(note, Mapping) or not all(isinstance(key, str) for key in note):
        raise ConfigError(f"note={note!r}: give a dict whose keys are texts, of plain JSON values")
    return dict(note)


def known_version(folder: StateFolder, version: int | None) -> int:
    """The number of the version (None: the newest) in a folder; raises StateError where it is not there."""
    numbers = folder.versions()
    if not numbers or version not in (None, *numbers):
        if numbers:
            raise StateError(
                f"the folder {folder.shown!r} holds the versions {numbers}, and not {version}: open one of these"
            )
        wanted = "" if version is None else f", and not {version}"
        raise StateError(f"the folder {folder.shown!r} holds no version{wanted}: begin with Runtime(…, spill=…)")
    return numbers[-1] if version is None else version
