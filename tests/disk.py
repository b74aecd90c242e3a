"""A disk that can be watched, broken, and cut off from power, for tests of what state folders survive.

It stands in for ``os`` in ``latecomer.storage.files``. Everything really happens, in a folder of the test. Besides,
each change is written down, so that :meth:`Disk.after` can make the folder as it would be had the machine stopped after
any one of them.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: What may be lost when a machine stops: nothing but what was not yet asked for (a process is killed); all that was not
#: synced; the content of files that were not synced, though their names are there; any mixture of these.
LOSSES = ("nothing", "unsynced", "content", "mixture")


class Disk:
    """Stands in for the module ``os``."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.log: list[tuple[Any, ...]] = []
        #: Called before each operation with its name and path; it may raise.
        self.before: Callable[[str, str], None] = lambda operation, path: None
        #: Bytes that all files together may have; None: any.
        self.room: int | None = None
        self._open: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        making = bool(flags & os.O_CREAT)
        self.before("create" if making else "open", path)
        file = os.open(path, flags, mode)
        self._open[file] = path
        if making:
            self.log.append(("create", path))
        return file

    def write(self, file: int, data: Any) -> int:
        half = bytes(data[: max(len(data) // 2, 1)])  # the system may take less than it is given
        self.before("write", self._open[file])
        if self.room is not None and self._used() + len(half) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.write(file, half)
        self.log.append(("write", self._open[file], half))
        return len(half)

    def _used(self) -> int:
        return sum(path.stat().st_size for path in Path(self.root).rglob("*") if path.is_file())

    def fsync(self, file: int) -> None:
        self.before("fsync", self._open[file])
        self.log.append(("fsync", self._open[file]))

    def close(self, file: int) -> None:
        os.close(file)
        del self._open[file]

    def replace(self, source: str, target: str) -> None:
        self.before("replace", target)
        os.replace(source, target)
        self.log.append(("replace", source, target))

    def unlink(self, path: str) -> None:
        self.before("unlink", path)
        os.unlink(path)
        self.log.append(("unlink", path))

    def mkdir(self, path: str) -> None:
        self.before("mkdir", path)
        os.mkdir(path)
        self.log.append(("mkdir", path))

    def scandir(self, path: str) -> Any:
        self.before("scandir", path)
        return os.scandir(path)

    def after(self, count: int, loss: str, target: Path, chance: random.Random) -> None:
        """Make ``target`` what :attr:`root` would be, had the machine stopped after ``count`` changes."""
        root = _Folder()
        folders = {self.root: root}
        contents: dict[str, _Content] = {}
        for operation, path, *more in self.log[:count]:
            parent, name = folders.get(os.path.dirname(path)), os.path.basename(path)
            if operation == "fsync":
                if path in folders:
                    folders[path].safe = dict(folders[path].names)
                elif path in contents:
                    contents[path].safe = contents[path].data
            elif operation == "write":
                contents[path].data += more[0]
            elif parent is None:  # the root itself, and what is above it
                assert operation == "mkdir", (operation, path)
            elif operation == "create":
                parent.names[name] = contents[path] = _Content()
            elif operation == "mkdir":
                parent.names[name] = folders[path] = _Folder()
            elif operation == "unlink":
                del parent.names[name], contents[path]
            elif operation == "replace":
                del parent.names[name]
                parent.names[os.path.basename(more[0])] = contents[more[0]] = contents.pop(path)
            else:
                raise AssertionError(operation)
        root.make(target, loss, chance)


class _Content:
    def __init__(self) -> None:
        self.data = b""
        self.safe = b""

    def make(self, target: Path, loss: str, chance: random.Random) -> None:
        lost = len(self.data) - len(self.safe)
        left = {"nothing": lost, "unsynced": 0, "content": lost // 2, "mixture": chance.randint(0, lost)}[loss]
        target.write_bytes(self.data[: len(self.safe) + left])


class _Folder:
    def __init__(self) -> None:
        self.names: dict[str, _Content | _Folder] = {}
        self.safe: dict[str, _Content | _Folder] = {}

    def make(self, target: Path, loss: str, chance: random.Random) -> None:
        target.mkdir(parents=True, exist_ok=True)
        for name in sorted({**self.names, **self.safe}):
            now, safe = self.names.get(name), self.safe.get(name)
            shown = safe if loss == "unsynced" or (loss == "mixture" and chance.random() < 0.5) else now
            if shown is not None:
                shown.make(target / name, loss, chance)
