"""Growable columns: append at the end, drop from the front, gather anywhere.

A column is one contiguous piece of memory, so that gathering rows for candidates is one call however many batches
brought them. Appending is amortised O(1) per value, and never waits for all the others: a column that needs more room
takes its memory along, or, where the system cannot move memory, copies some of its values with each append that follows
and goes over once it has them all. A short column uses the memory of what was dropped again: its values move back to
the beginning, so that no batch waits for the system to find memory. That of a long one goes back piece by piece, or,
where the system does not take it so, once it is as much as what is left.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from latecomer.storage import kernels
from latecomer.storage.room import Room

I64 = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
#: Values as they lie in memory: words of their width, or offsets (32 bits) and bytes of texts.
Raw = Array | tuple[Array, Array]

_NO_BYTES = np.zeros(0, np.uint8)


def some(mask: Array) -> bool:
    """Whether any value is true (or not 0). A batch asks dozens of times; ``mask.any()`` takes five times as long."""
    return bool(np.count_nonzero(mask))


def every(mask: Array) -> bool:
    """Whether all values are true (or not 0)."""
    return bool(np.count_nonzero(mask) == len(mask))


#: Values up to which a buffer goes to new memory at once.
_FEW = 1 << 15
#: Values copied to the new memory for each one that is appended, and how many at least together.
_RATE, _STEP = 16, 1 << 12
#: Bytes of values that move back at once, where what was dropped before them is as much as one in so many of them.
_SHORT, _BACK = 3 << 18, 3
#: Memory is reserved for so many times as many values as there are; it costs nothing until it is used.
_AHEAD = 4


class Buffer(kernels.Span):
    """A growable NumPy array. ``live()`` is the values that were appended and not dropped.

    >>> b = Buffer(np.dtype(np.int64)); b.append(np.array([1, 2, 3])); b.drop(1); b.live().tolist()
    [2, 3]
    """

    __slots__ = ("_due", "_room", "_used", "dtype")

    def __init__(self, dtype: np.dtype[Any], spare: int = 0) -> None:
        """``spare``: so many values behind the live ones are memory that may be read, whatever it holds."""
        self.dtype = dtype
        self._spare = spare
        self._start = self._end = 0
        self._next: _Copy | None = None
        self._take(Room(spare, dtype))
        self._due = 0

    def _take(self, room: Room) -> None:
        self._room, self._data = room, room.array
        self._limit = self._early()
        self._used = 0  # before the values moved back: up to where memory has been written to

    def _early(self) -> int:
        """From which end on the values must begin to go over: while there is room for half as many as there are."""
        return (2 * (len(self._data) - self._spare) + self._start) // 3

    def __len__(self) -> int:
        return self._end - self._start

    def live(self) -> Array:
        values: Array = self._data[self._start : self._end]
        return values

    def append(self, values: Array) -> None:
        n = len(values)
        end = self._end + n
        if end + self._spare > len(self._data):
            self._move(n)
            end = self._end + n
        self._data[self._end : end] = values
        self._end = end
        if self._next is not None:
            self._go_on(self._next, n)
        elif end > self._limit:
            self._begin()

    def _room_for(self, n: int) -> Room:
        return Room(max(_AHEAD * n, 64) + self._spare, self.dtype)

    def _move(self, n: int) -> None:
        """Go to new memory with room for ``n`` more, at once; arrays handed out still look at the old."""
        live = len(self)
        room = self._room_for(live + n)
        self._start = room.take_over(self._room, self._start, self._end)
        self._end, self._next = self._start + live, None
        self._take(room)

    def _begin(self) -> None:
        """Begin to go to new memory."""
        if len(self) <= _FEW or self._room.movable:
            self._move(0)
        else:
            self._next, self._due = _Copy(self._room_for(len(self)), self._start), 0

    def _go_on(self, copy: _Copy, n: int) -> None:
        """Copy what is due after ``n`` more values came; go over when all is there."""
        self._due += _RATE * n
        if self._due < min(_STEP, self._end - copy.done):
            return
        if self._end + self._spare > copy.origin + len(copy.room.array):  # many came at once
            self._move(0)
            return
        begin = max(copy.done, self._start)
        copy.done = min(begin + self._due, self._end)
        self._due = 0
        copy.room.array[begin - copy.origin : copy.done - copy.origin] = self._data[begin : copy.done]
        if copy.done == self._end:
            self._start, self._end = self._start - copy.origin, self._end - copy.origin
            self._next = None
            self._take(copy.room)

    def reserve(self, n: int) -> None:
        """Have room for ``n`` more values behind the live ones, if it can be had without copying many."""
        if self._next is None and (len(self) <= _FEW or self._room.movable):
            self._move(n)

    def drop(self, n: int) -> None:
        self._start += n
        dead = self._start - self._room.given
        if len(self) * self.dtype.itemsize <= _SHORT and not (self._next or self._room.seen):
            if _BACK * dead >= len(self):
                self._go_back()
            self._limit = self._early()
        else:
            self._release()

    def _go_back(self) -> None:
        """Let the values move to the beginning of the memory that was not given back."""
        used, begin, end = max(self._used, self._end), self._room.given, self._room.given + len(self)
        away = max(self._start - begin, 1)
        for at in range(begin, end, away):  # so many that they lie apart: else there would be a copy between
            stop = min(at + away, end)
            self._data[at:stop] = self._data[at + away : stop + away]
        lap = self._end - begin
        self._start, self._end, self._used = begin, end, used
        if used - self._start > 2 * lap:  # far less is needed now
            self._move(0)

    def _release(self) -> None:
        """Give back what was dropped, as far as the system takes it."""
        self._limit = self._early()
        self._room.give_back(self._start)
        dead = self._start - self._room.given
        if self._next is None and dead > len(self) + self._room.piece:  # it would go on taking memory
            self._begin()

    def keep(self, mask: npt.NDArray[np.bool_]) -> None:
        """Drop the values that ``mask`` does not mark. The others move up to the last of them, some at a time, so that
        there are never two of all, unless somebody looks at them.
        """
        if self._next is not None or self._room.seen:
            values = self.live()[mask]
            self._take(self._room_for(len(values)))
            self._data[: len(values)] = values
            self._start, self._end, self._next = 0, len(values), None
            return
        to = self._end
        for begin in range((len(self) - 1) // _FEW * _FEW, -1, -_FEW):
            values = self.live()[begin : begin + _FEW][mask[begin : begin + _FEW]]
            self._data[to - len(values) : to] = values
            to -= len(values)
        self._start = to
        self._release()

    def with_spare(self) -> Array:
        """The live values and the spare ones behind them."""
        values: Array = self._data[self._start : self._end + self._spare]
        return values

    @property
    def nbytes(self) -> int:
        """Bytes written to and not given back; what was only reserved costs nothing yet."""
        copied = 0 if self._next is None else self._next.done - self._next.origin
        return int((max(self._end, self._used) - self._room.given + copied) * self.dtype.itemsize)


class _Copy:
    """New memory: the values at ``origin`` to ``done`` of the old are there, from its beginning."""

    __slots__ = ("done", "origin", "room")

    def __init__(self, room: Room, origin: int) -> None:
        self.room, self.origin, self.done = room, origin, origin


#: A column as compiled kernels see it: values (of texts their bytes), offsets of texts (n + 1), and which are valid.
Plain = tuple[Array, I64 | None, Array | None]


class Column(Protocol):
    """What the event log needs of a column; positions count from the first value that was not dropped."""

    type: pa.DataType

    def append(self, values: pa.Array) -> None: ...
    def drop(self, n: int) -> None: ...
    def keep(self, mask: npt.NDArray[np.bool_]) -> None: ...
    def take(self, positions: I64) -> pa.Array: ...
    def live(self) -> pa.Array: ...
    @property
    def nbytes(self) -> int: ...


class _Validity:
    """Which values are not null; costs nothing until the first null comes."""

    __slots__ = ("bits",)

    def __init__(self) -> None:
        #: Whether each value is valid; None until a null comes.
        self.bits: Buffer | None = None

    def append(self, values: pa.Array, before: int) -> None:
        """``before``: how many values there have been."""
        if values.null_count and self.bits is None:
            self.bits = Buffer(np.dtype(bool))
            self.bits.append(np.ones(before, bool))
        if self.bits is not None:
            self.bits.append(values.is_valid().to_numpy(zero_copy_only=False))

    def append_valid(self, n: int) -> None:
        """``n`` values without nulls."""
        if self.bits is not None:
            self.bits.append(np.ones(n, bool))

    def drop(self, n: int) -> None:
        if self.bits is not None:
            self.bits.drop(n)

    def keep(self, mask: npt.NDArray[np.bool_]) -> None:
        if self.bits is not None:
            self.bits.keep(mask)

    @property
    def none(self) -> bool:
        """Whether no null ever came."""
        return self.bits is None

    def live(self) -> Array | None:
        """Whether each value is valid; None while no null has come."""
        return None if self.bits is None else self.bits.live()

    def bitmap(self, positions: I64 | None) -> pa.Buffer | None:
        """Arrow's validity bitmap of the values at ``positions`` (None: all)."""
        if self.bits is None:
            return None
        valid = self.bits.live() if positions is None else self.bits.live()[positions]
        return pa.py_buffer(np.packbits(valid, bitorder="little"))

    @property
    def nbytes(self) -> int:
        return self.bits.nbytes if self.bits is not None else 0


class FixedColumn:
    """Numbers, times, booleans: one machine word per value."""

    def __init__(self, kind: pa.DataType) -> None:
        self.type = kind
        self._bool = pa.types.is_boolean(kind)
        self.integers = pa.types.is_integer(kind)
        width = 1 if self._bool else kind.bit_width // 8
        self.values = Buffer(np.dtype(f"u{width}"))
        self._valid = _Validity()

    def append(self, values: pa.Array, rows: I64 | None = None) -> None:
        """Add ``values``, or (``rows``) those at these positions."""
        if rows is None:
            self._valid.append(values, len(self.values))
            self.values.append(self._raw(values))
        elif values.null_count or not self._valid.none:
            self.append(values.take(pa.array(rows)))
        else:
            self.append_raw(self._raw(values).take(rows))

    def append_raw(self, values: Array) -> None:
        """Add values as they lie in memory, none of them null."""
        self._valid.append_valid(len(values))
        self.values.append(values)

    def _raw(self, values: pa.Array) -> Array:
        if self._bool:
            return values.fill_null(False).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
        dtype = self.values.dtype
        return np.frombuffer(values.buffers()[1], dtype, len(values), values.offset * dtype.itemsize)

    def drop(self, n: int) -> None:
        self.values.drop(n)
        self._valid.drop(n)

    def keep(self, mask: npt.NDArray[np.bool_]) -> None:
        """Drop the values that ``mask`` does not mark."""
        self.values.keep(mask)
        self._valid.keep(mask)

    @property
    def no_nulls(self) -> bool:
        return self._valid.none

    @property
    def spans(self) -> tuple[Buffer, Buffer | None, Buffer | None]:
        """The values, of texts their offsets, and, once there have been nulls, which are none."""
        return self.values, None, self._valid.bits

    def plain(self) -> Plain:
        return self.values.live(), None, self._valid.live()

    def take(self, positions: I64) -> pa.Array:
        return self._build(self.values.live().take(positions), self._valid.bitmap(positions))

    def live(self) -> pa.Array:
        return self._build(self.values.live().copy(), self._valid.bitmap(None))

    def _build(self, raw: Array, bitmap: pa.Buffer | None) -> pa.Array:
        data = np.packbits(raw, bitorder="little") if self._bool else raw
        return pa.Array.from_buffers(self.type, len(raw), [bitmap, pa.py_buffer(data)])

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self._valid.nbytes


def raw_of(values: pa.Array) -> Raw:
    """Integers, texts or byte strings as they lie in memory, texts with offsets of 64 bits, the first of them where the
    bytes begin; whatever under nulls.
    """
    kind, buffers, n = values.type, values.buffers(), len(values)
    if pa.types.is_integer(kind):
        width = kind.bit_width // 8
        return np.frombuffer(buffers[1], f"u{width}", n, width * values.offset)
    large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    dtype = np.dtype(np.int64 if large else np.int32)
    edges = np.frombuffer(buffers[1], dtype, n + 1, dtype.itemsize * values.offset).astype(np.int64)
    return edges, _NO_BYTES if buffers[2] is None else np.frombuffer(buffers[2], np.uint8)[edges[0] :]


class BytesColumn:
    """Texts and byte strings: offsets into one growable buffer of bytes.

    Invariant: ``_offsets`` holds one more entry than there are values. Offsets count from the first byte that ever was,
    so that dropping changes none of them: ``_data``'s live part begins at the first offset.
    """

    def __init__(self, kind: pa.DataType) -> None:
        self.type = kind
        binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        self._large = pa.large_binary() if binary else pa.large_string()
        self._offsets = Buffer(np.dtype(np.int64))
        self._offsets.append(np.zeros(1, np.int64))
        self._data = Buffer(np.dtype(np.uint8), spare=8)
        self._valid = _Validity()

    def append(self, values: pa.Array) -> None:
        n = len(values)
        if n == 0:
            return
        large = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
        dtype = np.dtype(np.int64 if large else np.int32)
        _, offsets_buffer, data_buffer = values.buffers()
        offsets = np.frombuffer(offsets_buffer, dtype, n + 1, dtype.itemsize * values.offset)
        self._valid.append(values, len(self._offsets) - 1)
        self._append(offsets, _NO_BYTES if data_buffer is None else np.frombuffer(data_buffer, np.uint8))

    def append_raw(self, offsets: Array, data: Array) -> None:
        """Add texts, none of them null: text i is ``data[offsets[i] : offsets[i + 1]]``."""
        self._append(offsets, data)
        self._valid.append_valid(len(offsets) - 1)

    def _append(self, offsets: Array, data: Array) -> None:
        first, last = int(offsets[0]), int(offsets[-1])
        end = int(self._offsets.live()[-1])
        self._offsets.append(offsets[1:].astype(np.int64) + (end - first))
        if last > first:
            self._data.append(data[first:last])

    def drop(self, n: int) -> None:
        if n == 0:
            return
        before = self._origin
        self._offsets.drop(n)
        self._valid.drop(n)
        self._data.drop(self._origin - before)

    def keep(self, mask: npt.NDArray[np.bool_]) -> None:
        """Drop the values that ``mask`` does not mark: the others are copied."""
        kept = BytesColumn(self.type)
        kept.append(self.take(mask.nonzero()[0]))
        self._offsets, self._data, self._valid = kept._offsets, kept._data, kept._valid

    @property
    def _origin(self) -> int:
        """The offset of the first byte of the live data."""
        return int(self._offsets.live()[0])

    @property
    def no_nulls(self) -> bool:
        return self._valid.none

    @property
    def spans(self) -> tuple[Buffer, Buffer | None, Buffer | None]:
        """The bytes, the offsets, and, once there have been nulls, which are none."""
        return self._data, self._offsets, self._valid.bits

    def plain(self) -> Plain:
        return self._data.live(), self._offsets.live(), self._valid.live()

    def take(self, positions: I64) -> pa.Array:
        taken = self._all().take(pa.array(positions))
        if self._valid.none:
            return taken
        _, offsets, data = taken.buffers()
        return pa.Array.from_buffers(self._large, len(taken), [self._valid.bitmap(positions), offsets, data])

    def same(self, positions: I64, other: BytesColumn, others: I64, shift: int = 0) -> npt.NDArray[np.bool_]:
        """Whether the values at ``positions`` are those of ``other`` at ``others``, both less ``shift``, pair by pair;
        nulls are empty.
        """
        mine, its = self._offsets.live(), other._offsets.live()
        data, its_data = self._data.with_spare(), other._data.with_spare()
        return kernels.equal_texts(mine, data, positions, shift, its, its_data, others, shift)

    def live(self) -> pa.Array:
        return self.take(np.arange(len(self._offsets) - 1))

    def _all(self) -> pa.Array:
        """All values, empty where null: a view. Its bytes begin where the first offset says, so before the buffer's
        own beginning lies what nobody reads."""
        data, origin = self._data.live(), self._origin
        whole = pa.foreign_buffer(data.ctypes.data - origin, origin + len(data), data)
        return pa.Array.from_buffers(
            self._large, len(self._offsets) - 1, [None, pa.py_buffer(self._offsets.live()), whole]
        )

    @property
    def nbytes(self) -> int:
        return self._offsets.nbytes + self._data.nbytes + self._valid.nbytes


class ArrowColumn:
    """Any other Arrow type (decimals, lists, structs): whole Arrow arrays, joined when rows are gathered."""

    def __init__(self, kind: pa.DataType) -> None:
        self.type = kind
        self._chunks: list[pa.Array] = []
        self._skip = 0

    def append(self, values: pa.Array) -> None:
        self._chunks.append(values)

    def drop(self, n: int) -> None:
        self._skip += n

    def keep(self, mask: npt.NDArray[np.bool_]) -> None:
        """Drop the values that ``mask`` does not mark."""
        self._chunks, self._skip = [self.take(mask.nonzero()[0])], 0

    def take(self, positions: I64) -> pa.Array:
        return self.live().take(pa.array(positions))

    def live(self) -> pa.Array:
        if len(self._chunks) != 1 or self._skip:
            whole = pa.concat_arrays(self._chunks) if self._chunks else pa.array([], self.type)
            self._chunks, self._skip = [whole.slice(self._skip)], 0
        return self._chunks[0]

    @property
    def nbytes(self) -> int:
        return sum(c.nbytes for c in self._chunks)


def plain_layout(kind: pa.DataType) -> tuple[int, int] | None:
    """How compiled kernels read values of a type: the number of a kind in ``native/conditions.h``, and their width in
    bytes; None for types that they cannot read.
    """
    t = pa.types
    if t.is_string(kind) or t.is_large_string(kind) or t.is_binary(kind) or t.is_large_binary(kind):
        return 4, 1
    if t.is_boolean(kind):
        return 3, 1
    if t.is_float32(kind) or t.is_float64(kind):
        return 2, kind.bit_width // 8
    if t.is_unsigned_integer(kind):
        return 1, kind.bit_width // 8
    if t.is_integer(kind) or (t.is_temporal(kind) and kind.bit_width in (32, 64)):
        return 0, kind.bit_width // 8
    return None


def make_column(kind: pa.DataType) -> Column:
    """The growable column for an Arrow type (no dictionaries: decode them first)."""
    t = pa.types
    if t.is_string(kind) or t.is_large_string(kind) or t.is_binary(kind) or t.is_large_binary(kind):
        return BytesColumn(kind)
    fixed = t.is_boolean(kind) or t.is_integer(kind) or t.is_floating(kind) or t.is_temporal(kind)
    if fixed and kind.bit_width in (1, 8, 16, 32, 64):
        return FixedColumn(kind)
    return ArrowColumn(kind)
