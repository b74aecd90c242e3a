"""Advice: everything that a sample tells, put together; plain data for machines, a page for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from latecomer.advise.lateness import findings
from latecomer.advise.levels import Trial, trial
from latecomer.advise.promises import promises
from latecomer.advise.sample import Sample
from latecomer.advise.words import Recommendation, recommend
from latecomer.query import Query


@dataclass(frozen=True, slots=True)
class Advice:
    """What :func:`advise` found.

    Attributes:
        sample: what it rests on.
        lateness: see :func:`latecomer.advise.lateness.findings`.
        promises: see :func:`latecomer.advise.promises.promises`.
        trials: each query, under all levels, with what is recommended.
        recall, wrong: what was asked for.
    """

    sample: Sample
    lateness: dict[str, Any]
    promises: dict[str, Any]
    trials: tuple[tuple[Trial, Recommendation], ...]
    recall: float
    wrong: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; times are in ``unit``."""
        sample = self.sample
        return {
            "sample": {
                "name": sample.name,
                "unit": sample.unit,
                "rows": sample.rows,
                "events": len(sample),
                "rejected": sample.rejected,
                "unplaced": sample.unplaced,
                "thinned": sample.thinned,
                "arrival": sample.arrival is not None,
                "types": len(sample.kinds),
                "sources": None if sample.sources is None else len(sample.sources),
                "limits": list(sample.limits),
            },
            "wanted": {"recall": self.recall, "wrong": self.wrong},
            "lateness": self.lateness,
            "promises": self.promises,
            "queries": [
                {
                    "name": one.query.name,
                    "text": one.query.plan.text,
                    "window": one.window,
                    "replayed": one.events,
                    "events": one.of,
                    "share": one.share,
                    "stretch": one.stretch,
                    "step": one.step,
                    "matches": one.truth,
                    "recommendation": said.as_dict(),
                    "levels": [point.as_dict() for point in one.points],
                }
                for one, said in self.trials
            ],
        }

    def html(self) -> str:
        """One page that needs nothing else; raises MissingDependency without Jinja2."""
        from latecomer.advise.page import page

        return page(self)


def advise(
    sample: Sample,
    queries: Sequence[Query] = (),
    *,
    own: Sequence[str] = (),
    recall: float = 0.99,
    wrong: float = 0.05,
) -> Advice:
    """Measure a sample, and replay queries on it under all levels.

    Args:
        sample: from :func:`latecomer.advise.take`.
        queries: what to replay; their levels only count where ``own`` names them.
        own: names of the queries whose own level is to be judged too.
        recall: the least share of the matches that a recommended level must find.
        wrong: the largest share of alarms that may be wrong at first.

    Raises QueryError where a query asks for what the sample does not have.

    >>> import pyarrow as pa
    >>> from latecomer.advise import chunks_of, take, thin
    >>> table = pa.table({"type": ["A", "C", "B"], "ts": [1, 5, 3], "id": [1, 2, 3]})
    >>> sample = take(thin(chunks_of(table)), Stream(id="id", unit="s"), name="three events")
    >>> query = Query("PATTERN SEQ(A a, !B, C c) WITHIN 9 s", name="q", level=Conservative())
    >>> advice = advise(sample, [query])
    >>> advice.lateness["all"]["late"], advice.as_dict()["queries"][0]["matches"]
    (1, 0)
    """
    trials = [trial(sample, query, query.name in own) for query in queries]
    return Advice(
        sample=sample,
        lateness=findings(sample),
        promises=promises(sample),
        trials=tuple((one, recommend(one, recall, wrong)) for one in trials),
        recall=recall,
        wrong=wrong,
    )
