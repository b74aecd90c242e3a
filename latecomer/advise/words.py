"""Figures in words, and the recommendation.

Rules of the recommendation:

* a level is *fit* when its final answer on the sample has at least the wanted recall and as much precision;
* among fit levels that are final the one with the shortest wait is chosen; among those that correct themselves, the
  one with the shortest wait that raises few enough wrong alarms;
* the final one comes first where it makes one wait hardly longer than the other, or only a small part of the window;
* what nobody could have known (promises by hindsight) is never recommended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from latecomer.advise.levels import Point, Trial
from latecomer.units import UNITS

#: A final level comes first when its wait is at most this part of the window,
SMALL_PART = 0.1
#: or at most so many times the wait of the best level that corrects itself.
HARDLY_LONGER = 1.5
#: With fewer true matches shares are told with a warning.
FEW = 200


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to go: for whom it is, the point, and what it means."""

    when: str
    point: Point
    means: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "when": self.when,
            "level": str(self.point.level),
            "clause": self.point.clause,
            "promises": self.point.promises,
            "means": self.means,
        }


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The choices, the first one first, why it is the first, and what to beware of."""

    choices: tuple[Choice, ...]
    why: str
    cautions: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "choices": [choice.as_dict() for choice in self.choices],
            "why": self.why,
            "cautions": list(self.cautions),
        }


def recommend(trial: Trial, recall: float, wrong: float) -> Recommendation:
    """What to choose for a query.

    Args:
        recall: the least share of the true matches that must be found, and of the answers that must be true.
        wrong: the largest share of alarms that may be wrong at first, where they can be taken back.
    """
    if not trial.truth:
        nothing = "The query has no match in what was replayed, so nothing can be said of what a level would miss."
        return Recommendation((), nothing, tuple(_cautions(trial, ())))
    real = [p for p in trial.points if p.promises != ""]
    fit = [p for p in real if p.verdict.recall >= recall and p.verdict.precision >= recall and _wait(p) is not None]
    final = min((p for p in fit if p.family != "aggressive"), key=_cost, default=None)
    correcting = [p for p in fit if p.family == "aggressive"]
    few = [p for p in correcting if p.verdict.wrong <= wrong]
    quick = min(few, key=_cost, default=min(correcting, key=lambda p: (p.verdict.wrong, *_cost(p)), default=None))
    choices: list[Choice] = []
    if quick is not None:
        when = "Answers can be taken back" if trial.query.plan.negations else "Answers at once, none is ever taken back"
        choices.append(Choice(when, quick, _means(trial, quick)))
    if final is not None:
        choices.append(Choice("Answers must be final", final, _means(trial, final)))
    why = _why(trial, quick, final, recall)
    if quick is not None and final is not None and trial.query.plan.negations:
        limit = max(SMALL_PART * trial.window, HARDLY_LONGER * (_wait(quick) or 0.0))
        if (_wait(final) or 0.0) <= limit:
            choices.reverse()
            why = (
                f"A final level makes one wait hardly longer ({_waits(trial, final)}), so nobody need learn to take "
                "answers back."
            )
    return Recommendation(tuple(choices), why, tuple(_cautions(trial, choices)))


def _wait(point: Point) -> float | None:
    found = point.verdict
    return found.wait_95 if found.wait_95 is not None or found.truth else 0.0


def _cost(point: Point) -> tuple[float, float, float, int]:
    wait = _wait(point)
    found = point.verdict
    return (float("inf") if wait is None else wait, -found.recall, found.wrong, found.peak_events)


def _why(trial: Trial, quick: Point | None, final: Point | None, recall: float) -> str:
    if quick is None and final is None:
        return (
            f"No level found {percent(recall)} of the matches on this sample before it ended: the sample is short "
            "against its lateness, or the answers are too few. Take a longer sample."
        )
    if not trial.query.plan.negations:
        return (
            "The pattern has no absent event, so no late event can make an answer wrong: a level that answers at once "
            "never takes anything back, and waiting buys only order."
        )
    if quick is None:
        return "No level that corrects itself was fit."
    if final is None:
        return "No final level was fit: the slowest events come later than this sample can show."
    return (
        f"A final level would make one wait {_waits(trial, final)}; one that corrects itself {_waits(trial, quick)}, "
        f"at the price of {percent(quick.verdict.wrong)} of alarms that are wrong at first."
    )


def _waits(trial: Trial, point: Point) -> str:
    wait = _wait(point)
    if not wait:
        return f"less than {tell(trial.step, trial.unit)} for 95 % of the answers"
    return f"up to {tell(wait, trial.unit)} for 95 % of the answers"


def _means(trial: Trial, point: Point) -> str:
    found = point.verdict
    text = (
        f"Finds {percent(found.recall)} of the {found.truth:,} matches; waits {_waits(trial, point)}; "
        f"holds at most {found.peak_events:,} events"
    )
    if point.family == "aggressive" and found.wrong:
        text += f"; {percent(found.wrong)} of the alarms are wrong at first, {percent(found.taken_back)} are taken back"
    elif found.precision < 1:
        text += f"; {percent(1 - found.precision)} of the answers are wrong, and stay"
    if found.late:
        text += f"; {some(found.late, 'event')} came too late for it"
    return text + "."


def _cautions(trial: Trial, choices: Sequence[Choice]) -> list[str]:
    told = []
    if 0 < trial.truth < FEW:
        told.append(
            f"This rests on {some(trial.truth, 'match', 'matches')} only: shares below {percent(1 / trial.truth)} "
            "cannot be told apart. Take a longer sample before you decide."
        )
    if trial.events < trial.of:
        told.append(
            f"{trial.events:,} of the {trial.of:,} events that the query looks at were replayed: the last "
            f"{tell(trial.stretch, trial.unit)}"
            + (f", and of these {percent(trial.share)}; state is scaled up to all of them." if trial.share < 1 else ".")
        )
    if any(choice.point.family == "conservative" for choice in choices):
        told.append(
            "A promise that this sample kept is no promise of the sources. Ask whoever sends, and watch the late "
            "output: events that break it go there with the reason after_punctuation."
        )
    if choices:
        told.append(
            "The largest lateness of a sample is the largest so far, not the largest possible: watch the late output, "
            "and repeat this on a sample of a bad day."
        )
    return told


def tell(units: float, unit: str) -> str:
    """A length of time for people: three digits at most, in the largest unit in which it is 2 or more, or 1.

    >>> tell(5_400, "s"), tell(0, "ms"), tell(47.4, "s")
    ('90 min', '0 ms', '47.4 s')
    """
    nanoseconds = abs(units) * UNITS[unit]
    sign = "−" if units < 0 else ""
    for larger in reversed(UNITS):
        value = nanoseconds / UNITS[larger]
        if value >= 2 or value == 1 or larger == unit:
            return f"{sign}{value:,.0f} {larger}" if value >= 100 else f"{sign}{value:.3g} {larger}"
    return f"{sign}{nanoseconds:.3g} ns"


def percent(share: float) -> str:
    """A share in per cent, with as many digits as tell it from 0 and 100.

    >>> percent(0.5), percent(0.9996), percent(1), percent(0.00004)
    ('50 %', '99.96 %', '100 %', '0.004 %')
    """
    value = share * 100
    for digits in (0, 1, 2, 3):
        rest = min(value, 100 - value)
        if rest <= 0 or (rest >= 10 and digits == 0) or (rest >= 1 and digits == 1) or (rest >= 0.1 and digits == 2):
            break
    text = f"{value:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} %"


def some(count: int, what: str, plural: str | None = None) -> str:
    """A number of things: ``1 event``, ``2,000 events``."""
    return f"{count:,} {what if count == 1 else plural or what + 's'}"
