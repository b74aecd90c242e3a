"""Tasks: what is done with the messages of one partition, and what has to be remembered about it.

The rule: a task is a state machine over its messages in order. ``take`` turns messages into outgoing ones and moves the
position; what a task is after some position follows from the last state version and the messages since then. So not
every commit needs a version: a commit names a version and the position at which it was written, and whoever takes over
reads the messages in between once more, in silence.

That holds only where the order of messages is on record and nothing else went in. A task that reads several partitions
(their order in relation to each other is on no record) and one that was told the time (:meth:`MatchTask.advance`) write
a version with the next commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from latecomer.connectors.kafka.decode import Decoded, Decoder
from latecomer.connectors.kafka.encode import Encoder, Outgoing
from latecomer.connectors.kafka.formats import Unreadable
from latecomer.connectors.kafka.merging import PromisesOfPartitions
from latecomer.connectors.kafka.places import Message, Origins, position_of
from latecomer.connectors.kafka.state import Saving, StateKeeper
from latecomer.errors import StateError
from latecomer.runtime import Runtime

#: A partition of a topic.
Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Mark:
    """What the metadata of a committed offset says: the state version, and the offset at which it was written."""

    state: str | None = None
    at: int | None = None

    def text(self) -> str:
        """As metadata."""
        return json.dumps({"latecomer": 1, "state": self.state, "at": self.at}, separators=(",", ":"))

    @classmethod
    def of(cls, text: str | None) -> Mark:
        """From metadata; an offset that something else committed has none of ours.

        >>> Mark.of(Mark("0000000001-ab", 17).text())
        Mark(state='0000000001-ab', at=17)
        """
        try:
            data = json.loads(text or "{}")
            if isinstance(data, dict) and data.get("latecomer", 1) == 1:
                return cls(data.get("state"), data.get("at"))
        except ValueError:
            return cls()
        raise StateError(f"the committed offset has metadata of another release: {text}. Go on with that release")


@dataclass(slots=True)
class Counts:
    """What has been done: by a task, or in all."""

    consumed: int = 0
    bytes: int = 0
    changes: int = 0
    late: int = 0
    commits: int = 0
    aborted: int = 0
    dead: dict[str, int] = field(default_factory=dict)

    def add(self, other: Counts) -> None:
        """Move the counts of ``other``, which begins anew, here."""
        for name in ("consumed", "bytes", "changes", "late"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
            setattr(other, name, 0)
        for reason, count in other.dead.items():
            self.dead[reason] = self.dead.get(reason, 0) + count
        other.dead = {}


class MatchTask:
    """Events of one partition (or of the partitions with one number) through a runtime.

    ``positions``: the next offset of each partition. ``until``: offsets below it were taken in before by the process
    that committed them; they rebuild the state and give no output. ``fine``: offsets below it may have been taken in
    before without a commit; their changes are told one by one, so that nothing that a reader saw stays without its
    correction. ``fine_count``: the same for so many messages, where there are several partitions.
    """

    def __init__(
        self,
        name: str,
        decoders: Mapping[str, Decoder],
        encoder: Encoder,
        runtime: Runtime,
        positions: dict[Partition, int],
        merge: PromisesOfPartitions | None = None,
    ) -> None:
        self.name = name
        self.runtime = runtime
        self.positions = positions
        self.counts = Counts()
        self.version: str | None = None
        self.at: int | None = None
        self.until = -1
        self.fine = -1
        self.fine_count = 0
        self.saving: Saving | None = None  # a version on its way
        self._saving_at = -1
        self.told_time = False  # since the last version was begun
        self.taken = 0  # messages since the last commit
        self._decoders = decoders
        self._encoder = encoder
        self.merge = merge

    @property
    def replaying(self) -> bool:
        """Whether the task still reads what was committed before."""
        return min(self.positions.values()) < self.until

    @property
    def needs_version(self) -> bool:
        """Whether the next commit must name a version of its own position."""
        return self.version is None or self.told_time or len(self.positions) > 1

    def note(self) -> dict[str, Any]:
        """What has to be kept besides the runtime."""
        return {} if self.merge is None else {"promises": self.merge.dump()}

    def marks(self) -> Iterator[tuple[Partition, int, Mark]]:
        """What to commit: partition, offset, metadata."""
        for partition, position in self.positions.items():
            yield partition, position, Mark(self.version, self.at if len(self.positions) == 1 else position)

    def freeze(self, keeper: StateKeeper) -> None:
        """Begin to write a version of the present position."""
        self.saving = keeper.begin(self.runtime, self.note())
        self._saving_at = next(iter(self.positions.values()))
        self.told_time = False

    def saved(self) -> str:
        """Wait for the version that is being written; offsets name it from now on. Raises StateError when it cannot be
        written."""
        assert self.saving is not None
        self.saving.done.result()
        self.version, self.at, self.saving = self.saving.name, self._saving_at, None
        return self.version

    def take(self, batches: Mapping[Partition, Sequence[Message]]) -> Iterator[Outgoing]:
        """Take in messages, for each partition those that follow its position; yields what is to be written.

        The position counts as moved when the iterator has come to its end.
        """
        replayed = len(self.positions) == 1 and self.replaying
        for partition, messages in batches.items():
            if replayed:
                silent = [m for m in messages if m.offset() < self.until]
                yield from self._take({partition: silent}, silence=True)
                yield from self._take({partition: messages[len(silent) :]})
        if not replayed:
            yield from self._take(batches)

    def advance(self, now: int) -> Iterator[Outgoing]:
        """It is ``now``, in units of event time; yields what follows from that."""
        if self.replaying:
            return
        self.told_time = True
        yield from self._outgoing(self.runtime.advance(now))

    def _take(self, batches: Mapping[Partition, Sequence[Message]], silence: bool = False) -> Iterator[Outgoing]:
        batches = {partition: messages for partition, messages in batches.items() if messages}
        if not batches:
            return
        batch, poison = self._decode(batches)
        first = min(messages[0].offset() for messages in batches.values())
        cuts = range(1, batch.num_rows) if first < self.fine or self.fine_count > 0 else ()
        self.fine_count -= sum(map(len, batches.values()))
        if batch.num_rows:
            for piece in self.runtime.stream_pieces(batch, cuts=cuts):
                if not silence:
                    yield from self._outgoing(piece)
        for partition, messages in batches.items():
            self.positions[partition] = messages[-1].offset() + 1
        if not silence:
            for message, problem in poison:
                self.counts.dead[problem.reason] = self.counts.dead.get(problem.reason, 0) + 1
                yield self._encoder.dead_letter(message, problem)
            self.taken += sum(map(len, batches.values()))
        self._count(batches)

    def _decode(self, batches: Mapping[Partition, Sequence[Message]]) -> tuple[pa.RecordBatch, list[tuple[Any, Any]]]:
        """All events, in order of arrival, and all poison."""
        decoded: list[tuple[Sequence[Message], Decoded]] = []
        for partition, messages in batches.items():
            if self.merge is None:
                topic = partition[0]
                decoded.append((messages, self._decoders[topic].decode(messages, Origins(topic))))
            else:
                decoded.append(self._decode_forwarded(messages))
        poison = [(messages[n], problem) for messages, found in decoded for n, problem in sorted(found.poison.items())]
        if len(decoded) == 1:
            return decoded[0][1].batch, poison
        # Several partitions: a fair mixture, since by the order in which they were fetched one would run ahead.
        order = np.argsort(np.concatenate([d.numbers / max(len(m), 1) for m, d in decoded]), kind="stable")
        return pa.concat_batches([d.batch for _, d in decoded]).take(pa.array(order)), poison

    def _decode_forwarded(self, messages: Sequence[Message]) -> tuple[Sequence[Message], Decoded]:
        """Messages of the internal topic, each read by the decoder of the topic that it came from."""
        assert self.merge is not None
        places = [position_of(message) for message in messages]
        batches, numbers = [], []
        poison: dict[int, Unreadable] = {}
        for topic in dict.fromkeys(topic for topic, _, _ in places):
            own = np.array([n for n, place in enumerate(places) if place[0] == topic])
            found = self._decoders[topic].decode([messages[n] for n in own.tolist()], Origins(topic, forwarded=True))
            batches.append(found.batch)
            numbers.append(own[found.numbers])
            poison.update((int(own[n]), problem) for n, problem in found.poison.items())
        order = np.argsort(np.concatenate(numbers), kind="stable")
        merged = np.concatenate(numbers)[order]
        batch = pa.concat_batches(batches).take(pa.array(order))
        batch, kept = self.merge.apply(batch, [places[n][:2] for n in merged.tolist()])
        return messages, Decoded(batch, merged[kept], poison)

    def _outgoing(self, output: Any) -> Iterator[Outgoing]:
        self.counts.changes += output.changes.num_rows
        self.counts.late += output.late.num_rows
        yield from self._encoder.changes(output.changes)
        yield from self._encoder.late(output.late)

    def _count(self, batches: Mapping[Partition, Sequence[Message]]) -> None:
        self.counts.consumed += sum(map(len, batches.values()))
        self.counts.bytes += sum(sum(map(len, messages)) for messages in batches.values())
