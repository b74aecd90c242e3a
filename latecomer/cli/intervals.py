"""What ``latecomer check`` says of a query that is matched over intervals: when a match leaves, how long state is kept.

So is skip-till-next-match over exact times, whose intervals have length 0. ``latest(x)`` and ``earliest(x)`` are the
times that an event can have in the match; the clock is the largest lower end seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from latecomer.cli.promises import intervals, retention, slack_of
from latecomer.consistency.levels import Aggressive, Conservative, KSlack
from latecomer.query.plan import Negation, Plan
from latecomer.runtime.intervals.guards import check_level, guarded

if TYPE_CHECKING:
    from latecomer.stream import Stream


@dataclass(frozen=True, slots=True)
class Reach:
    """That a stream's times are intervals: how long they are at most, in its units where these are known."""

    longest: int | None = None

    @classmethod
    def of(cls, stream: Stream, unit: str | None) -> Reach | None:
        """What is known of a stream's intervals; None where its times are exact."""
        if not stream.uncertain:
            return None
        intervals = None if unit is None else stream.intervals(unit)
        return cls(None if intervals is None else intervals.longest)


class IntervalFacts:
    """Facts of one query; ``unit`` is None where it is not known."""

    def __init__(self, plan: Plan, unit: str | None, reach: Reach) -> None:
        check_level(plan.level)
        self._plan, self._unit, self._longest = plan, unit, reach.longest
        self._negations = guarded(plan).negations  # with skip-till-next-match also of rivals
        self._exact = reach.longest == 0

    def waits(self) -> list[str]:
        """What a match waits for. A final level waits for the last of all worlds; one that corrects itself for the
        first moment at which the event behind a scope may have happened, and until a trailing scope is surely over.
        """
        plan = self._plan
        trailing = any(negation.kind == "trailing" for negation in self._negations)
        end = self._end(None if trailing else len(plan.positives) - 1)
        beyond = "is past" if trailing else "reaches"
        match plan.level:
            case KSlack():
                return [
                    f"until the clock {beyond} {end} + {slack_of(plan.level)}{intervals(self._longest, self._unit)}"
                ]
            case Conservative() if self._negations:
                return list(dict.fromkeys(map(self._proof, self._negations)))
            case Aggressive(patience=patience) if self._negations and (trailing or patience.amount):
                wait = f" + {patience}" * bool(patience.amount)
                moment = end if trailing else self._time("earliest", plan.positives[-1].var)
                return [f"until the clock {beyond} {moment}{wait}"]
        return ["nothing: it leaves with its last event"]

    def retention(self) -> dict[str, Any]:
        """How long state is kept."""
        return retention(self._plan, self._unit, longest=self._longest, twice=self._plan.negates_both_ends)

    def _time(self, which: str, var: str) -> str:
        return f"{var}.ts" if self._exact else f"{which}({var})"

    def _end(self, right: int | None) -> str:
        """The end of a scope before a positive (None: of a trailing one) in every world."""
        if right is None:
            return f"{self._time('latest', self._plan.positives[0].var)} + {self._plan.window}"
        return self._time("latest", self._plan.positives[right].var)

    def _proof(self, negation: Negation) -> str:
        covers = "reaches" if negation.right is None else "covers all times before"
        of = "" if self._exact else ", counted by lower ends"
        return f"until punctuation of {negation.component.type} {covers} {self._end(negation.right)}{of}"
