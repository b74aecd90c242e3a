"""Files of text that a user names: a query, a pipeline, a token. What may be wrong with one is said here."""

from __future__ import annotations

import os
from pathlib import Path

from latecomer.errors import ConfigError


def read_text(path: str | os.PathLike[str], what: str) -> str:
    """The text of a file, without the mark that some editors put first; ``what`` it is, like "query file".

    Raises ConfigError for a name without a file, a folder, a file that may not be read, and one that is no text.

    >>> read_text("none.query", "query file")
    Traceback (most recent call last):
    ...
    latecomer.errors.ConfigError: there is no query file 'none.query'
    """
    shown = repr(os.fspath(path))
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        problem = f"there is no {what} {shown}"
    except IsADirectoryError:
        problem = f"{shown} is a folder, where a {what} is needed: give the file's own name"
    except UnicodeDecodeError:
        problem = f"the {what} {shown} is not UTF-8 text"
    except OSError as error:
        problem = f"the {what} {shown} cannot be read: {error.strerror}"
    except ValueError:  # no system has a name with a null in it
        problem = f"{shown} is no name that a {what} can have"
    raise ConfigError(problem)
