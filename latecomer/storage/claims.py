"""Claims: one writer at a time, without locks.

The rule: a writer puts a claim into the folder, a small file whose name is its epoch and a random word. The writer is
whose claim has the greatest name. So a claim fences everybody before it, and two that take the same epoch at the same
moment agree on who has won. It needs nothing of a file system but that a file which was written shows in the next
listing.

A writer looks at the claims before it writes and after it has made a version (:meth:`Claim.check`). Whoever claims
looks at the versions only after its claim is there. So a commit that has returned is seen by every later writer.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import uuid

from latecomer.errors import StateError
from latecomer.storage.files import Files, failure
from latecomer.storage.versions import epoch_of, writer_of


class Claim:
    """A claim on the folder that messages call ``shown``.

    Attributes:
        writer: epoch and random word; every file that this writer makes begins its name with it.
        fenced: whether it is known that somebody else has taken over.
    """

    def __init__(self, files: Files, shown: str, epoch: int) -> None:
        """Put a claim with this epoch. Raises StateError when it cannot be written, or another one wins."""
        self._files = files
        self._shown = shown
        self.writer = f"{epoch:010d}-{uuid.uuid4().hex[:8]}"
        self.fenced = False
        who = f"process {os.getpid()} on {socket.gethostname()}"
        name = f"claims/{self.writer}.json"
        try:
            files.publish(name, json.dumps({"epoch": epoch, "who": who}).encode())
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                self.check()  # whoever has won deletes what others have begun
            raise failure(error, shown, name, "written") from error
        self.check()

    @property
    def epoch(self) -> int:
        return epoch_of(self.writer)

    def check(self) -> None:
        """Raise StateError, which says who has taken over, unless this claim still holds."""
        last = last_claim(self._files, self._shown)
        if writer_of(last) == self.writer:
            return
        self.fenced = True
        if last < self.writer:
            raise StateError(
                f"the claim of epoch {self.epoch} has vanished from the state folder {self._shown!r}: it was changed "
                "from outside. Restore it, or begin with a new folder"
            )
        raise StateError(
            f"fenced: {named(self._files, last)} has taken over the state folder {self._shown!r} with epoch "
            f"{epoch_of(last)}, and this writer had epoch {self.epoch}. A state has one writer: stop one of the two; "
            "this one can go on only by claiming again and starting from the last version"
        )


def named(files: Files, claim: str) -> str:
    """Who made this claim, in words."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(files.read(f"claims/{claim}"))["who"])
    return "another writer"


def has_ended(files: Files, claim: str) -> bool:
    """Whether it is known that the process that made this claim is no more: one of this machine that is not there."""
    words = named(files, claim).split()
    if len(words) != 4 or words[3] != socket.gethostname() or not words[1].isdigit():
        return False
    try:
        os.kill(int(words[1]), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def last_claim(files: Files, shown: str) -> str:
    """The name of the claim that holds; empty when the folder was never claimed."""
    try:
        names = files.list("claims")
    except OSError as error:
        raise failure(error, shown, "claims", "read") from error
    return max((name for name in names if writer_of(name) and name.endswith(".json")), default="")
