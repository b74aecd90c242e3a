"""Files of a folder, wherever it is: the few operations that a state needs, on disks and in object stores.

The rule: a file is written once, whole, under a name that nobody used before, and never changed. So no reader needs a
lock. ``write`` may leave a part of the file behind when the machine dies in it; what it has written is durable after
``secure``. ``publish`` shows the whole file, durably, or nothing. A file that could not be written leaves nothing
behind.

Names are relative to the folder, ``folder/name``. Failures are OSErrors; :func:`failure` puts them in words.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import fs

from latecomer.errors import MissingDependency, StateError

#: Small chunks are gathered to writes of this many bytes.
_GATHER = 1 << 18


class Files(Protocol):
    """What a state needs of a file system."""

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        """A new file that holds ``chunks``; durable after :meth:`secure`."""
        ...

    def secure(self, names: Sequence[str]) -> None:
        """Make files that were written durable."""
        ...

    def publish(self, name: str, data: bytes) -> None:
        """A new file that appears in one step."""
        ...

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """``length`` bytes (None: the rest) from ``offset``; fewer where the file ends before."""
        ...

    def list(self, folder: str) -> dict[str, int]:
        """Names in ``folder`` and their sizes in bytes; empty when there is no such folder."""
        ...

    def delete(self, names: Sequence[str]) -> None:
        """Remove files; those that are gone already are fine. Not durable before :meth:`settle`."""
        ...

    def settle(self, folder: str) -> None:
        """What was deleted from ``folder`` stays deleted."""
        ...


class LocalFiles:
    """A folder on this machine. ``sync=False``: nothing has to survive the machine, only the process."""

    def __init__(self, root: str, *, sync: bool = True) -> None:
        self._root = root
        self._sync = sync
        self._unsure: set[str] = set()  # paths whose content the system may have given up

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        self._fill(self._path(name), chunks, False)

    def secure(self, names: Sequence[str]) -> None:
        if not self._sync:
            return
        paths = [self._path(name) for name in names]
        for path in paths:
            self._flush(path)
        for folder in sorted({os.path.dirname(path) for path in paths}):
            self._settle(folder)

    def _flush(self, path: str) -> None:
        """Make a file's content durable. After a failure the system may take what it could not write for written, so
        the next attempt writes all of it again."""
        file = os.open(path, os.O_RDWR)
        try:
            if path in self._unsure:
                at = 0
                while data := os.pread(file, _GATHER, at):
                    at += os.pwrite(file, data, at)
            os.fsync(file)
        except OSError as error:
            self._unsure.add(path)
            error.filename = path  # of several, which one
            raise
        finally:
            os.close(file)
        self._unsure.discard(path)

    def publish(self, name: str, data: bytes) -> None:
        path = self._path(name)
        self._fill(path + ".part", [data], True)
        try:
            os.replace(path + ".part", path)
        except OSError:
            _forget(path + ".part")
            raise
        self._settle(os.path.dirname(path))

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        with open(self._path(name), "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            wanted = max(min(size - offset, size if length is None else length), 0)
            file.seek(offset)
            data = file.read(wanted)
            while len(data) < wanted and (more := file.read(wanted - len(data))):
                data += more
        return data

    def list(self, folder: str) -> dict[str, int]:
        try:
            with os.scandir(self._path(folder)) as entries:
                return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
        except FileNotFoundError as error:
            if error.filename == self._path(folder):
                return {}
            return self.list(folder)  # a file went between the listing and the look at it

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(name))

    def settle(self, folder: str) -> None:
        self._settle(self._path(folder))

    def _path(self, name: str) -> str:
        return os.path.join(self._root, *name.split("/"))

    def _fill(self, path: str, chunks: Iterable[bytes], durably: bool) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        try:
            file = os.open(path, flags, 0o666)
        except FileNotFoundError:
            self._make(os.path.dirname(path))
            file = os.open(path, flags, 0o666)
        try:
            try:
                for chunk in _gathered(chunks):
                    view = memoryview(chunk)
                    while view:
                        view = view[os.write(file, view) :]
                if self._sync and durably:
                    os.fsync(file)
            finally:
                os.close(file)
        except OSError:
            _forget(path)
            raise

    def _make(self, folder: str) -> None:
        missing = []
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for made in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(made)
            self._settle(os.path.dirname(made))

    def _settle(self, folder: str) -> None:
        """Make the names in ``folder`` durable (where the system has no way to say so, they are)."""
        if self._sync and hasattr(os, "O_DIRECTORY"):
            entry = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(entry)
            finally:
                os.close(entry)


@contextlib.contextmanager
def _os_errors() -> Iterator[None]:
    """Each implementation of fsspec fails in its own way; here every failure is an OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


class ArrowFiles:
    """A folder in any file system that PyArrow or fsspec opens; what it has written when closed is durable there."""

    def __init__(self, files: fs.FileSystem, root: str) -> None:
        self._fs = files
        self._root = root.rstrip("/")

    @_os_errors()
    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        path = f"{self._root}/{name}"
        try:
            try:
                out = self._fs.open_output_stream(path)
            except FileNotFoundError:  # object stores have no folders; others want them made
                self._fs.create_dir(os.path.dirname(path), recursive=True)
                out = self._fs.open_output_stream(path)
            with out:
                for chunk in _gathered(chunks):
                    out.write(chunk)
        except Exception:
            # Leaving ``with`` has closed the file, and some stores keep what had come until then.
            with contextlib.suppress(Exception):
                self._fs.delete_file(path)
            raise

    def secure(self, names: Sequence[str]) -> None:
        """Nothing to do: what was written is durable."""

    @_os_errors()
    def publish(self, name: str, data: bytes) -> None:
        self.write(name + ".part", [data])
        self._fs.move(f"{self._root}/{name}.part", f"{self._root}/{name}")

    @_os_errors()
    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        with self._fs.open_input_file(f"{self._root}/{name}") as file:
            size = file.size()
            wanted = max(min(size - offset, size if length is None else length), 0)
            return bytes(file.read_at(wanted, offset)) if wanted else b""

    @_os_errors()
    def list(self, folder: str) -> dict[str, int]:
        entries = self._fs.get_file_info(fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True))
        return {entry.base_name: entry.size for entry in entries if entry.type == fs.FileType.File}

    @_os_errors()
    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self._fs.delete_file(f"{self._root}/{name}")

    def settle(self, folder: str) -> None:
        """Nothing to do: whoever answers that a file is deleted has done it."""


def open_files(uri: str | os.PathLike[str], *, sync: bool = True) -> tuple[Files, str]:
    """The files in the folder at ``uri``, and how messages name it: a full path, or a URI without its password.

    Raises StateError when ``uri`` cannot be opened, MissingDependency when it takes fsspec and that is not there.
    """
    text = os.fspath(uri)
    if "\0" in text:
        raise StateError(f"the state folder {text!r} has a zero character in its name: no folder can have that")
    if "://" not in text:
        path = str(Path(text).expanduser().absolute())  # it has to mean the same when the working directory changes
        return LocalFiles(path, sync=sync), path
    shown = re.sub(r"://[^/@]*@", "://***@", text)
    try:
        files, root = _arrow(text, shown)
    except (pa.ArrowInvalid, OSError, ValueError, ImportError) as error:
        raise StateError(
            f"the state folder {shown!r} cannot be opened ({error}): give a local path, or a URI like "
            "'s3://bucket/folder'"
        ) from error
    if isinstance(files, fs.LocalFileSystem):
        return LocalFiles(root, sync=sync), shown
    if not root and isinstance(files, (fs.S3FileSystem, fs.GcsFileSystem)):
        raise StateError(f"the state folder {shown!r} names no bucket: give a URI like 's3://bucket/folder'")
    return ArrowFiles(files, root), shown


def _arrow(uri: str, shown: str) -> tuple[Any, str]:
    try:
        return fs.FileSystem.from_uri(uri)  # type: ignore[no-any-return]
    except pa.ArrowInvalid as error:
        if "nrecognized filesystem" not in str(error):
            raise
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise MissingDependency("fsspec", "fsspec", f"the state folder {shown!r}") from None
    # A remembered listing would hide that another writer has taken over.
    found, root = url_to_fs(uri, use_listings_cache=False)
    return fs.PyFileSystem(fs.FSSpecHandler(found)), root


def failure(error: OSError, shown: str, name: str, doing: str) -> StateError:
    """What went wrong with the file ``name`` of the folder ``shown``, and what to do. ``doing``: read, written, …"""
    file = f"{name!r} in the state folder {shown!r}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StateError(
            f"{file} cannot be {doing}: no space is left ({error.strerror}). The folder is as it was before; "
            "free some space and go on"
        )
    if isinstance(error, FileNotFoundError):
        return StateError(
            f"{file} is missing: the folder was changed from outside, or the version that needs the file was dropped. "
            "Put it back from a copy, or go on from a version that `latecomer state verify` finds whole"
        )
    if isinstance(error, NotADirectoryError):
        return StateError(
            f"the state folder {shown!r} is a file, or lies below one: give the path of a folder, or of one that is "
            "not there yet"
        )
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return StateError(
            f"{file} cannot be {doing}: not allowed ({error.strerror or error}). The folder is as it was before; "
            "give this process the right to read and write there, or another folder"
        )
    return StateError(
        f"{file} cannot be {doing} ({error}). The folder is as it was before; go on when the storage works"
    )


def _forget(path: str) -> None:
    """Remove what a failed write has left, if the file system still lets us: it is in no version."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def _gathered(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, small chunks together."""
    small: list[bytes] = []
    size = 0
    for chunk in chunks:
        if len(chunk) >= _GATHER:
            if small:
                yield b"".join(small)
                small, size = [], 0
            yield chunk
            continue
        small.append(chunk)
        size += len(chunk)
        if size >= _GATHER:
            yield b"".join(small)
            small, size = [], 0
    if small:
        yield b"".join(small)
