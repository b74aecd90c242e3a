"""Prometheus metrics, as a scrape sees them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import latecomer as lc
from latecomer.connectors import metrics as module
from latecomer.connectors.metrics import Metrics
from latecomer.runtime.explain import OTHERS
from latecomer.testing import Abort, CollectingSink, ScriptedSource, play

STREAM = lc.Stream(id="id", source="from", unit="ms", punctuation="PUNCT")
TEXT = "PATTERN SEQ(A a, !B, C c) WHERE [k] WITHIN 10 s"
QUERIES = [
    lc.Query(TEXT, name="slow", level=lc.KSlack("2 s")),
    lc.Query(TEXT, name="quick", level=lc.Aggressive("3 s")),
    lc.Query(TEXT, name="sure", level=lc.Conservative()),
]
ROWS = [
    {"id": id, "type": type, "ts": ts, "k": "x", "from": sender, "of": None}
    for id, type, ts, sender in [
        (1, "A", 1000, "n"),
        (2, "C", 5000, "s"),
        (3, "B", 2500, "n"),  # 2.5 s behind: late for slow; takes quick's match back
        (3, "B", 2500, "n"),  # a copy
        (4, "Z", 6000, "s"),
        (None, "C", 6000, "s"),
        (None, "PUNCT", 2600, None),
        (5, "C", 2600, "n"),  # late for all
    ]
]
DOCS = Path(__file__).parent.parent / "docs"


def scrape(registry):
    """All samples of a registry: (name, labels but for the runtime) -> value."""
    text = generate_latest(registry).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(v for k, v in sorted(sample.labels.items()) if k != "runtime")
            key = sample.name.removeprefix("latecomer_"), *labels
            assert key not in found
            found[key] = sample.value
    return found


class Told:
    """A runtime that explains what it is told to."""

    def __init__(self, *queries, **explained):
        nothing = {"counters": {}, "sources": {}, "queries": {}, "bounds": {}, "events": 0, "bytes": 0}
        self.explained, self.queries = nothing | explained, queries

    def explain(self):
        return self.explained


def counters(found):
    return {key: value for key, value in found.items() if key[0].endswith("_total")}


def test_what_a_scrape_sees():
    registry = CollectorRegistry()
    runtime = lc.Runtime(STREAM, QUERIES)
    metrics = Metrics("job", registry)
    assert scrape(registry) == {}
    for row in ROWS:
        runtime.process([row])
    metrics.update(runtime)
    found = scrape(registry)
    assert {k: v for k, v in counters(found).items() if "source" not in k[0]} == {
        ("rows_total",): 8,
        ("events_total",): 6,
        ("other_type_events_total",): 1,
        ("punctuation_rows_total",): 1,
        ("duplicate_events_total",): 1,
        ("conflicting_events_total",): 0,
        ("malformed_rows_total",): 1,
        ("ahead_events_total",): 0,
        ("late_events_total", "slow", "after_k"): 2,
        ("late_events_total", "quick", "after_max_delay"): 1,
        ("late_events_total", "sure", "after_punctuation"): 1,
        ("matches_inserted_total", "slow"): 0,
        ("matches_inserted_total", "quick"): 1,
        ("matches_inserted_total", "sure"): 0,
        ("matches_deleted_total", "slow"): 0,
        ("matches_deleted_total", "quick"): 1,
        ("matches_deleted_total", "sure"): 0,
    }
    explained = runtime.explain()
    assert found["clock_seconds",] == 6.0
    assert found["state_events",] == explained["events"] > 0
    assert found["state_bytes",] == explained["bytes"] > 0
    assert {k[1]: v for k, v in found.items() if k[0] == "retention_seconds"} == {"slow": 12.0, "quick": 13.0}
    assert {k[1]: v for k, v in found.items() if k[0] == "slack_seconds"} == {"slow": 2.0}
    assert {k[1]: v for k, v in found.items() if k[0] == "patience_seconds"} == {"quick": 0.0}
    lag = {k[1]: v for k, v in found.items() if k[0] == "horizon_lag_seconds"}
    assert lag == {"slow": 2.001, "quick": 0.001, "sure": 3.4}  # the clock is at 6 s, punctuation at 2.6 s
    for name in ("slow", "quick", "sure"):
        facts = explained["queries"][name]
        assert found["held_matches", name] == facts["held"]
        assert found["buffered_events", name] == facts["buffered"]
        assert found["stored_events", name] == facts["stored"]
    assert found["buffered_events", "slow"] > 0


def test_before_the_first_batch():
    registry = CollectorRegistry()
    Metrics("job", registry).update(lc.Runtime(STREAM, QUERIES))
    found = scrape(registry)
    assert found["rows_total",] == found["state_events",] == found["late_events_total", "slow", "after_k"] == 0
    assert ("clock_seconds",) not in found


def test_what_a_query_waits_for_in_seconds():
    registry = CollectorRegistry()
    facts = {"horizon": 29_000, "k": 2500, "patience": 500, "retention": None}
    told = Told(QUERIES[0], clock=90_000, unit="ms", queries={"slow": facts}, bounds={"B": 80_000, "C": 2**62})
    Metrics("job", registry).update(told)
    found = scrape(registry)
    assert found["horizon_lag_seconds", "slow"] == 61.0
    assert found["slack_seconds", "slow"] == 2.5
    assert found["patience_seconds", "slow"] == 0.5
    assert ("retention_seconds", "slow") not in found
    assert {k[1]: v for k, v in found.items() if k[0] == "promise_lag_seconds"} == {"B": 10.0, "C": 0.0}


class Watched(lc.Runtime):
    """A runtime whose counters are scraped after every batch, also after restarts."""

    registry: CollectorRegistry
    metrics: Metrics
    scrapes: list[dict]

    def process(self, batch, **more):
        out = super().process(batch, **more)
        Watched.metrics.update(self)
        Watched.scrapes.append(counters(scrape(Watched.registry)))
        return out


def test_no_lag_is_shown_where_nothing_is_waited_for():
    registry = CollectorRegistry()
    text = "PATTERN SEQ(A a, C c) WITHIN 10 s"
    queries = [
        lc.Query(text, name="free", level=lc.Conservative()),
        lc.Query(TEXT, name="unproved", level=lc.Conservative()),
        lc.Query(text, name="quick", level=lc.Aggressive("1 s")),
    ]
    runtime = lc.Runtime(STREAM, queries)
    runtime.process(ROWS[:2])
    Metrics("job", registry).update(runtime)
    assert not [key for key in scrape(registry) if key[0] in ("horizon_lag_seconds", "slack_seconds")]


def test_slack_and_patience_that_are_chosen_are_those_in_use():
    registry = CollectorRegistry()
    queries = [
        lc.Query(TEXT, name="recalls", level=lc.KSlack(recall=0.9, max="5 s")),
        lc.Query(TEXT, name="waits", level=lc.Aggressive("5 s", retractions=0.1)),
    ]
    runtime, metrics = lc.Runtime(STREAM, queries), Metrics("job", registry)
    for at in range(0, 10_000, 2_000):
        runtime.process([{**ROWS[0], "id": n, "ts": n} for n in range(at, at + 2_000)])
        metrics.update(runtime)
        told = runtime.explain()["queries"]
        assert scrape(registry)["slack_seconds", "recalls"] == told["recalls"]["k"] / 1000
        assert scrape(registry)["patience_seconds", "waits"] == told["waits"]["patience"] / 1000
    assert told["recalls"]["k"] == 0  # nothing was ever late


def test_counters_never_fall_and_count_once_through_restarts():
    Watched.registry = CollectorRegistry()
    Watched.metrics, Watched.scrapes = Metrics("job", Watched.registry), []
    script = [*ROWS[:3], Abort(), *ROWS[3:6], Abort(), *ROWS[6:]]
    source = ScriptedSource(script, batch=1)
    last = play(Watched(STREAM, QUERIES), source, CollectingSink(), every=100, finish=False)
    assert len(Watched.scrapes) == 3 + 6 + 8  # both crashes throw everything away
    for before, after in zip(Watched.scrapes, Watched.scrapes[1:], strict=False):
        assert all(after[key] >= value for key, value in before.items())
    once = CollectorRegistry()
    Metrics("job", once).update(last)
    assert Watched.scrapes[-1] == counters(scrape(once))
    assert Watched.scrapes[-1]["rows_total",] == len(ROWS)


def test_a_new_process_counts_from_where_it_began():
    runtime = lc.Runtime(STREAM, QUERIES)
    runtime.process(ROWS[:5])
    runtime = lc.Runtime.restore(runtime.snapshot())
    registry = CollectorRegistry()
    metrics = Metrics("job", registry, since=runtime.explain())
    metrics.update(runtime)
    assert set(counters(scrape(registry)).values()) == {0}
    assert ("source_events_total", "s") in scrape(registry)
    assert ("source_late_ratio", "s") in scrape(registry)  # lateness goes with the state
    runtime.process(ROWS[5:])
    metrics.update(runtime)
    found = scrape(registry)
    assert found["rows_total",] == 3
    assert found["late_events_total", "slow", "after_k"] == 1
    assert found["source_events_total", "n"] == 1
    assert found["source_late_events_total", "n"] == 3
    registry = CollectorRegistry()
    Metrics("job", registry).update(runtime)
    assert scrape(registry)["rows_total",] == 8
    assert scrape(registry)["source_events_total", "n"] == 4


def test_runtimes_share_a_registry():
    registry = CollectorRegistry()
    runtimes = {name: lc.Runtime(STREAM, QUERIES) for name in ("one", "two")}
    shown = {name: Metrics(name, registry) for name in runtimes}
    for number, (name, runtime) in enumerate(runtimes.items(), 1):
        runtime.process(ROWS[:number])
        shown[name].update(runtime)
    text = generate_latest(registry).decode()
    assert text.count("# TYPE latecomer_rows_total counter") == 1
    assert registry.get_sample_value("latecomer_rows_total", {"runtime": "one"}) == 1
    assert registry.get_sample_value("latecomer_rows_total", {"runtime": "two"}) == 2
    shown["one"].close()
    assert 'runtime="one"' not in generate_latest(registry).decode()
    assert registry.get_sample_value("latecomer_rows_total", {"runtime": "two"}) == 2
    Metrics("two", registry)  # begins anew
    assert 'runtime="two"' not in generate_latest(registry).decode()


def test_labels_do_not_grow_with_events_keys_and_ids():
    registry = CollectorRegistry()
    runtime, metrics = lc.Runtime(lc.Stream(id="id", unit="ms"), QUERIES), Metrics("job", registry)
    sizes = set()
    for start in range(0, 3000, 1000):
        rows = range(start, start + 1000)
        runtime.process([{"id": n, "type": "ABC"[n % 3], "ts": n, "k": f"key {n}"} for n in rows])
        metrics.update(runtime)
        sizes.add(len(scrape(registry)))
    assert len(sizes) == 1
    assert not re.search("key|id=", generate_latest(registry).decode())


def told_sources(events, clock=100):
    facts = {
        name: {
            "events": n,
            "late": n // 2,
            "clock": clock - n,
            "idle": n % 2 == 1,
            "share_late": n / 10,
            "lateness": {"0.5": 1, "0.99": n},
        }
        for name, n in events.items()
    }
    return Told(clock=clock, unit="s", sources=facts)


def test_sources_have_names_up_to_a_limit():
    registry = CollectorRegistry()
    metrics = Metrics("job", registry, sources=2)
    metrics.update(told_sources({"a": 1, "b": 9, "c": 4, None: 2, "other": 3}))
    found = scrape(registry)
    assert {k[1]: v for k, v in found.items() if k[0] == "source_events_total"} == {"b": 9, "c": 4, "other": 6}
    assert {k[1]: v for k, v in found.items() if k[0] == "source_late_events_total"} == {"b": 4, "c": 2, "other": 2}
    assert {k[1]: v for k, v in found.items() if k[0] == "source_lag_seconds"} == {"b": 9, "c": 4, "other": 3}
    assert {k[1]: v for k, v in found.items() if k[0] == "source_idle"} == {"b": 1, "c": 0, "other": 2}
    assert {k[1]: v for k, v in found.items() if k[0] == "source_late_ratio"} == {"b": 0.9, "c": 0.4}
    assert {k[1:]: v for k, v in found.items() if k[0] == "source_lateness_seconds"} == {
        ("0.5", "b"): 1, ("0.99", "b"): 9, ("0.5", "c"): 1, ("0.99", "c"): 4,
    }  # fmt: skip


def test_a_name_is_kept_whoever_comes():
    """However sources come and go, there is a bounded number of series, and no counter falls."""
    registry = CollectorRegistry()
    metrics = Metrics("job", registry, sources=3)
    names, before, events = set(), {}, {}
    for step in range(30):
        events |= {f"s{step}": 1000 * step}
        events = {name: n + 1 for name, n in events.items()}
        metrics.update(told_sources(events, clock=10**6))
        found = counters(scrape(registry))
        assert all(found[key] >= value for key, value in before.items())
        before = found
        names |= {key[1] for key in found if key[0].startswith("source")}
    assert names == {"s0", "s1", "s2", "other"}
    assert sum(v for k, v in found.items() if k[0] == "source_events_total") == sum(events.values())


def test_sources_that_the_runtime_does_not_tell_apart_are_among_the_others():
    registry = CollectorRegistry()
    Metrics("job", registry).update(told_sources({OTHERS: 70, "a": 2}))
    found = scrape(registry)
    assert {k[1]: v for k, v in found.items() if k[0] == "source_events_total"} == {"a": 2, "other": 70}


def test_a_new_process_gives_names_by_all_that_a_sender_ever_sent():
    registry = CollectorRegistry()
    told = told_sources({"much": 9, "little": 1, "some": 5})
    metrics = Metrics("job", registry, sources=2, since=told.explain())
    metrics.update(told)
    found = scrape(registry)
    assert {k[1]: v for k, v in found.items() if k[0] == "source_events_total"} == {"much": 0, "some": 0, "other": 0}


def test_an_unnamed_source_is_null():
    registry = CollectorRegistry()
    Metrics("job", registry).update(told_sources({None: 2}))
    assert scrape(registry)["source_events_total", "null"] == 2


def test_names_follow_the_rules_of_prometheus():
    for family in module.FAMILIES:
        assert re.fullmatch(r"latecomer_[a-z]+(_[a-z]+)*", family.name)
        assert not family.name.endswith("_total")
        assert family.meaning[0].isupper() or family.meaning[0].isdigit()
    assert len({f.name for f in module.FAMILIES}) == len(module.FAMILIES)
    alone = {v for v in vars(module).values() if isinstance(v, module.Family)}
    told = {*alone, *module.STREAM.values(), *module.HELD.values(), *module.CONFIDENCES.values()}
    assert told == set(module.FAMILIES)


def test_options():
    with pytest.raises(lc.ConfigError, match="sources=-1: 0 or more"):
        Metrics("job", CollectorRegistry(), sources=-1)
    with pytest.raises(lc.ConfigError, match=r"since=runtime\.explain\(\)"):
        Metrics("job", CollectorRegistry(), since=lc.Runtime(STREAM, QUERIES).counters)


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(lc.MissingDependency, match=r"pip install 'latecomer\[metrics\]'"):
        Metrics("job")


def test_the_default_registry():
    metrics = Metrics("default")
    runtime = lc.Runtime(STREAM, QUERIES)
    runtime.process(ROWS[:2])
    metrics.update(runtime)
    try:
        assert prometheus_client.REGISTRY.get_sample_value("latecomer_rows_total", {"runtime": "default"}) == 2
    finally:
        metrics.close()


def test_the_page_lists_every_metric():
    page = (DOCS / "metrics.md").read_text()
    rows = [f"`{f.name}{'_total' if f.counter else ''}`" for f in module.FAMILIES]
    assert [name for name in rows if name not in page] == []
