"""Worked examples of the dissertation whose levels Latecomer keeps, and the corrections that its printed text needs.

Source: M. Liu, "Extending Event Sequence Processing: New Models and Optimization Techniques", WPI 2012, chapters 2
and 3. The figures with the original streams did not survive; each stream here holds the events that the text names,
in the order it asks for. Events are written as in the text: ``a3`` is an A at time 3. An event is late when greater
times arrived before it.
"""

import pytest

import latecomer as lc
from tests.script import changes, late, start, take, tell
from tests.squeeze import KINDS, squeezed


@pytest.fixture(autouse=True, params=KINDS)
def sizes(request):
    """Every example once more with state in the smallest pieces: then nothing is kept longer than it must be."""
    with squeezed(request.param):
        yield


def levels(slack):
    """The three levels, each promising that no event comes more than ``slack`` late; conservative by punctuation in
    the words.
    """
    return [lc.KSlack(slack), lc.Conservative(), lc.Aggressive(slack)]


@pytest.mark.parametrize("level", levels(0))
def test_example_1_every_earlier_event_is_a_partner(level):
    """Liu 2012, chapter 2, example 1: t15 looks back to a6, and below it to a5."""
    runtime = start("PATTERN SEQ(G g, A a, T t) WITHIN 20 s", level)
    assert tell(runtime, "g1 a5 a6 t15 .") == {"t15": ["+g1 a5 t15", "+g1 a6 t15"]}


@pytest.mark.parametrize("pattern", ["A a, B b, D d", "A a, B b, !C c, D d"])
def test_example_2_a_late_last_event_still_finds_its_partners(pattern):
    """Liu 2012, §3.3.1, example 2: d17 is beyond the window of a3, yet a3 may not be forgotten while d8 can come."""
    runtime = start(f"PATTERN SEQ({pattern}) WITHIN 10 s", lc.Aggressive(9))
    assert tell(runtime, "a3 c5 b6 d10 d17 d8 .") == {"d10": ["+a3 b6 d10"], "d8": ["+a3 b6 d8"]}


def test_example_2_for_the_final_levels():
    text = "PATTERN SEQ(A a, B b, !C c, D d) WITHIN 10 s"
    slack = start(text, lc.KSlack(9))
    assert tell(slack, "a3 c5 b6 d10 d17 d8 d19 .") == {"d8": ["+a3 b6 d8"], "d19": ["+a3 b6 d10"]}
    conservative = start(text, lc.Conservative())
    assert tell(conservative, "a3 c5 b6 d10 d17 d8 <C,8> <C,10>") == {"<C,8>": ["+a3 b6 d8"], "<C,10>": ["+a3 b6 d10"]}


@pytest.mark.parametrize("level", levels(13))
def test_example_3_a_negative_outlives_the_window(level):
    """Liu 2012, §3.3.2, example 3: the late b4 makes a3 b4 d10, which c5 forbids: c5 lies between b4 and d10.

    The printed text says "between b6 and d8", which belongs to another stream.
    """
    runtime = start("PATTERN SEQ(A a, B b, !C c, D d) WITHIN 10 s", level)
    told = tell(runtime, "a3 c5 b6 d10 f17 b4 <*,17> .")
    assert [c for answer in told.values() for c in answer] == ["+a3 b6 d10"]


@pytest.mark.parametrize("level", levels(14))
def test_observation_2_an_old_negative_forbids_a_late_positive(level):
    """Liu 2012, §3.3.2, observation 2: c5 is out of f17's window, b11 is not; the late a3 meets b11, and c5 between
    them.
    """
    assert tell(start("PATTERN SEQ(A a, !C c, B b) WITHIN 10 s", level), "c5 b11 f17 a3 <*,17> .") == {}


def test_observation_3_without_knowledge_negation_waits_for_ever():
    """Liu 2012, §3.3.2, observation 3; only the end of the stream, the last possible knowledge, lets the match go."""
    runtime = start("PATTERN SEQ(A a, !C c, B b) WITHIN 10 s", lc.Conservative())
    assert tell(runtime, "a3 b11 a300 b310 a5000 .") == {".": ["+a3 b11", "+a300 b310"]}


def test_without_negation_the_conservative_level_answers_at_once():
    """Liu 2012, §3.6.1: positives that fit are permanently valid as soon as they are all there, late ones too."""
    runtime = start("PATTERN SEQ(A a, B b, C c) WITHIN 10 s", lc.Conservative())
    assert tell(runtime, "a1 c9 b20 b5") == {"b5": ["+a1 b5 c9"]}


def test_example_4_one_punctuation_makes_a_partner_useless():
    """Liu 2012, §3.6.1, example 4, algorithm 1: nothing of type A in [1 - 7, 1], and none can come: b1 is in no match
    any more.

    The printed a0 would be such an A; its time must be another one, here 4.
    """
    runtime = start("PATTERN SEQ(A a, B b, !C c, D d) WITHIN 7 s", lc.Conservative())
    assert tell(runtime, "b1 a4 d2 <A,1> a0 a-2 a1 d3 d8 <*,8> .") == {}
    assert tell(start("PATTERN SEQ(A a, B b, !C c, D d) WITHIN 7 s", lc.Conservative()), "b1 a4 d2 a0 .") == {
        "a0": ["+a0 b1 d2"]
    }


def test_example_5_all_punctuation_together_sees_the_order():
    """Liu 2012, §3.6.1, example 5, algorithm 2: b6 before a7 and b11 after it, but no D in [11, 17] and none to come.

    Needs p.ts >= e.ts + W (17 >= 7 + 10), where the printed test is strict: a D at 17 may not come any more.
    """
    text = "PATTERN SEQ(B a, A b, B c, D d, F e) WITHIN 10 s"
    seen = "b6 a7 d10 b11 f17 b4"
    assert tell(start(text, lc.Conservative()), f"{seen} <B,17> <D,17> d12 d17 f16 .") == {}
    assert tell(start(text, lc.Conservative()), f"{seen} <B,17> <D,11> d12 f16 .") == {"f16": ["+b6 a7 b11 d12 f16"]}


@pytest.mark.parametrize(
    ("pattern", "words", "told"),
    [
        ("A a, B b", "b5 <A,3> a4 <A,4> a3", {"a4": ["+a4 b5"]}),
        ("A a, B b", "a5 <B,14> b15 b16", {"b15": ["+a5 b15"]}),
        ("A a, B b, C c, D d", "a5 b6 c7 <B,20> <C,20> <A,20> d8 d16", {"d8": ["+a5 b6 c7 d8"]}),
        ("A a, B b, C c, D d", "a5 b6 c7 <B,20> <C,20> <A,20> d15", {"d15": ["+a5 b6 c7 d15"]}),
        ("A a, B b, C c", "c7 a5 <A,6> <C,7> b6 <B,6>", {"b6": ["+a5 b6 c7"]}),
        ("A a, !C c, B b", "c3 b5 <A,1> a2 <C,4>", {}),
        ("A a, !C c, B b", "c3 a2 <A,9> <C,2> b5 <C,9>", {}),
        ("A a, !C c, B b, !D d", "a1 b5 c3 <A,20> <B,20> <C,20> <D,11>", {}),
        ("A a, !C c, B b, !D d", "c3 a1 b5 <A,20> <B,20> <C,20> <D,11>", {}),
        ("A a, !C c, B b, !D d", "a1 b5 c1 <A,20> <B,20> <C,20> <D,11>", {"<D,11>": ["+a1 b5"]}),
    ],
)
def test_a_purge_by_punctuation_drops_nothing_that_is_needed(pattern, words, told):
    """Liu 2012, §3.6.1, definition 1, algorithm 2: events one unit within what can still come, chains in a row."""
    assert tell(start(f"PATTERN SEQ({pattern}) WITHIN 10 s", lc.Conservative()), words) == told


def test_example_6_punctuation_lets_a_held_match_go():
    """Liu 2012, §3.6.1, example 6: c5 is outside (6, 10), so a3 b6 d10 waits for <C,10> only; the printed "<" would
    not release.
    """
    text = "PATTERN SEQ(A a, B b, !C c, D d) WITHIN 10 s"
    assert tell(start(text, lc.Conservative()), "a3 c5 b6 d10 d17 <C,10>") == {"<C,10>": ["+a3 b6 d10"]}
    # The scope is open at d10, and times are whole: 9 is the last time that matters.
    assert tell(start(text, lc.Conservative()), "a3 c5 b6 d10 d17 <C,8> <C,9>") == {"<C,9>": ["+a3 b6 d10"]}


def test_examples_7_and_8_a_late_negative_takes_back_only_what_was_out():
    """Liu 2012, §3.6.2, examples 7 and 8: c5 has already filtered a3 b11, so the late c9 deletes a7 b11 alone."""
    runtime = start("PATTERN SEQ(A a, !C c, B b) WITHIN 10 s", lc.Aggressive(5))
    assert tell(runtime, "a3 c5 a7 b11 c9 .") == {"b11": ["+a7 b11"], "c9": ["-a7 b11"]}


def test_a_late_negative_of_another_type_finds_the_match_already_gone():
    """Liu 2012, §3.6.2, algorithm 4: with several negative types the check must look at all of them, not the late
    one's alone.
    """
    runtime = start("PATTERN SEQ(A a, !C c, !E e, B b) WITHIN 10 s", lc.Aggressive(9))
    assert tell(runtime, "a3 e5 b11 c9 e6 .") == {}
    runtime = start("PATTERN SEQ(A a, !C c, !E e, B b) WITHIN 10 s", lc.Aggressive(9))
    assert tell(runtime, "a3 b11 e5 c9 e6 .") == {"b11": ["+a3 b11"], "e5": ["-a3 b11"]}


@pytest.mark.parametrize("killers", ["c9+c5", "c9+c5+c6", "e9+e5", "c9+e5", "e5+c9", "c9+e5+c6+e9"])
def test_several_late_negatives_at_once_take_a_match_back_once(killers):
    """Liu 2012, §3.6.2: a deletion is for a result that was out; the first of several negatives has taken it back."""
    runtime = start("PATTERN SEQ(A a, !C c, !E e, B b) WITHIN 10 s", lc.Aggressive(9))
    told = tell(runtime, f"a3 a7 b11 {killers} .")
    assert told == {"b11": ["+a3 b11", "+a7 b11"], killers: ["-a3 b11", "-a7 b11"]}


def test_a_late_positive_beside_its_late_negative():
    """Liu 2012, §3.6.2: a late positive gives insertions, each judged by the negatives already there."""
    runtime = start("PATTERN SEQ(A a, !C c, B b) WITHIN 10 s", lc.Aggressive(9))
    assert tell(runtime, "b11 a7 c9 a10 a5 .") == {"a7": ["+a7 b11"], "c9": ["-a7 b11"], "a10": ["+a10 b11"]}


def test_a_negation_at_the_end_waits_and_can_be_taken_back():
    """Liu 2012, §3.6.1 (end negation), definition 14: scope (2, 1 + 10]. "Overdue" is said when the clock has passed
    it.
    """
    text = "PATTERN SEQ(A a, B b, !C c) WITHIN 10 s"
    assert tell(start(text, lc.Aggressive(5)), "a1 b2 c5 f30 .") == {}
    assert tell(start(text, lc.Aggressive(5)), "a1 b2 f11 f12 c11 .") == {"f12": ["+a1 b2"], "c11": ["-a1 b2"]}
    assert (
        tell(start(text, lc.Aggressive(5)), "a1 b2 f11 c11 f12 .") == {}
    )  # equal to the clock is not late, and counts
    assert tell(start(text, lc.Aggressive(5)), "a1 b2 f11 c11+f12 .") == {}  # killed in the batch that would release it
    assert tell(start(text, lc.Aggressive(5)), "a1 b2 f12+c11 .") == {}
    assert tell(start(text, lc.Aggressive(5)), "a1+b2+c11+f12 .") == {}
    assert tell(start(text, lc.Aggressive(5)), "a1 b2 f12 c11+b3 .") == {"f12": ["+a1 b2"], "c11+b3": ["-a1 b2"]}
    assert tell(start(text, lc.Conservative()), "a1 b2 c5 <C,50> .") == {}
    assert tell(start(text, lc.Conservative()), "a1 b2 f40 <C,10> <C,11>") == {"<C,11>": ["+a1 b2"]}
    assert tell(start(text, lc.KSlack(3)), "a1 b2 f14 f15") == {"f15": ["+a1 b2"]}


def test_a_negation_at_the_start_looks_back_a_window_from_the_last_event():
    """Liu 2012, §3.6.1 leaves it out; by definition 14 of chapter 5 the scope is [tn - W, t1), here [-2, 3)."""
    text = "PATTERN SEQ(!C c, A a, B b) WITHIN 10 s"
    for killer, answer in {"c-3": ["+a3 b8"], "c-2": [], "c2": [], "c3": ["+a3 b8"]}.items():
        assert tell(start(text, lc.Aggressive(20)), f"{killer} a3 b8").get("b8", []) == answer
    assert tell(start(text, lc.Conservative()), "a3 b8 <C,1> <C,2>") == {"<C,2>": ["+a3 b8"]}


@pytest.mark.parametrize(("level", "on_time"), [(lc.KSlack(5), "after_k"), (lc.Aggressive(5), "after_max_delay")])
def test_exactly_k_old_is_still_on_time(level, on_time):
    """Liu 2012, §3.5 says "at least K old" and "ts < c - K" at once: here an event at exactly clock - K is on time."""
    runtime = start("PATTERN SEQ(A a, B b) WITHIN 10 s", level)
    told = tell(runtime, "b15 a10 .")
    assert [c for answer in told.values() for c in answer] == ["+a10 b15"]
    runtime = start("PATTERN SEQ(A a, B b) WITHIN 10 s", level)
    take(runtime, "b15")
    assert late(take(runtime, "a9")) == [("a9", on_time, 1)]
    assert changes(runtime.finish()) == []


def test_k_slack_lets_an_event_in_when_the_clock_is_k_ahead():
    """Liu 2012, §3.5: with the test ts <= c - K."""
    assert tell(start("PATTERN SEQ(A a, B b) WITHIN 10 s", lc.KSlack(5)), "b15 a12 f19 f20") == {"f20": ["+a12 b15"]}


def test_k_slack_gives_matches_in_order_of_completion():
    """Liu 2012, §3.4, ordered output: also where some matches have a scope to wait for and others have none left."""
    runtime = start("PATTERN SEQ(A a, B b, !C c) WITHIN 10 s", lc.KSlack(2))
    assert tell(runtime, "a0 b3 a1 b4") == {}
    out = take(runtime, "b11+f10+f14")  # a1 b11 ends its window itself, the others wait for it
    assert changes(out)[:2] in (["+a0 b3", "+a0 b4"], ["+a0 b4", "+a0 b3"])
    assert sorted(changes(out)[2:]) == ["+a1 b11", "+a1 b3", "+a1 b4"]
    runtime = start("PATTERN SEQ(A a, B b) WITHIN 10 s", lc.KSlack(2))
    told = changes(take(runtime, "a3+a1+b7+b5+b6+f9+b8"))
    assert [change.split()[-1] for change in told] == ["b5", "b5", "b6", "b6", "b7", "b7"]


def test_punctuation_excludes_its_own_time():
    """Liu 2012, §3.6.1 words it both ways ("less than", "less than or equal"): here none at or before p.ts comes."""
    runtime = start("PATTERN SEQ(A a, !C c, B b) WITHIN 10 s", lc.Conservative())
    assert tell(runtime, "a3 <C,5> c6 b9 c5 <C,8>") == {}
    runtime = start("PATTERN SEQ(A a, !C c, B b) WITHIN 10 s", lc.Conservative())
    take(runtime, "<C,5>")
    assert late(take(runtime, "c5")) == [("c5", "after_punctuation", 1)]
    assert late(take(runtime, "c6")) == []
    assert late(take(runtime, "a5")) == []  # punctuation speaks of its type alone


def test_lost_repeated_and_reordered_punctuation_only_delays():
    """Liu 2012, §3.6.1: the greatest bound per type is kept; a later one makes up for those that were lost."""
    runtime = start("PATTERN SEQ(A a, !C c, B b) WITHIN 10 s", lc.Conservative())
    assert tell(runtime, "a3 b9 <C,4> <C,4> <C,2> a13 b19 <C,30> <C,12>") == {"<C,30>": ["+a13 b19", "+a3 b9"]}


@pytest.mark.parametrize("level", levels(20))
def test_scopes_are_open_and_order_is_strict(level):
    """Liu 2012, §3.4 (inclusive) against algorithms 3 and 4 (strict): here a negative at a neighbour's time forbids
    nothing.
    """
    runtime = start("PATTERN SEQ(A a, !C c, B b) WITHIN 10 s", level)
    told = tell(runtime, "a3 c3 b3 c9 b9 <*,20> .")
    assert [c for answer in told.values() for c in answer] == ["+a3 b9"]


def test_k_slack_as_punctuation():
    """Liu 2012, §3.8: knowing that nothing is more than K late is punctuation at clock - K - 1, so the answers are
    the same.
    """
    text, words = "PATTERN SEQ(A a, !C c, B b) WITHIN 10 s", "a3 b9 c12 a8 b14 c10 a16 b20 f40"
    slack = tell(start(text, lc.KSlack(6)), words + " .")
    conservative, clock, told = start(text, lc.Conservative()), -100, []
    for word in words.split():
        clock = max(clock, int(word[1:]))
        told += changes(take(conservative, word)) + changes(take(conservative, f"<*,{clock - 7}>"))
    assert sorted(c for answer in slack.values() for c in answer) == sorted(told)
    assert told


def test_state_of_window_plus_delay_is_enough():
    """Liu 2012, §3.6.2: an event K late still meets a partner W before it, and one unit more is too much to ask."""
    runtime = start("PATTERN SEQ(A a, !C c, B b) WITHIN 10 s", lc.Aggressive(7))
    assert tell(runtime, "a3 f20 b13 .") == {"b13": ["+a3 b13"]}
    runtime = start("PATTERN SEQ(A a, !C c, B b) WITHIN 10 s", lc.Aggressive(7))
    assert tell(runtime, "a3 c4 f20 b13 .") == {}


def test_each_level_keeps_what_it_may_still_need():
    """Liu 2012, §3.6.2 (window and delay) carried over to the other levels: what an event may meet lies W before it."""
    pair = "PATTERN SEQ(A a, B b) WITHIN 10 s"
    assert tell(start(pair, lc.KSlack(7)), "a3 f20 b13 .") == {"b13": ["+a3 b13"]}
    assert tell(start(pair, lc.Conservative()), "a1 <*,10> b11 .") == {"b11": ["+a1 b11"]}
    negated = "PATTERN SEQ(!C c, A a, B b) WITHIN 10 s"
    assert tell(start(negated, lc.KSlack(7)), "c3 a5 f20 b13 .") == {}
    assert tell(start(negated, lc.Conservative()), "c1 a5 <*,10> b11 .") == {}
    overdue = "PATTERN SEQ(A a, B b, !C c) WITHIN 10 s"
    patient = lc.Aggressive(0, patience=20)
    assert tell(start(overdue, patient), "a1 b2 f20 f31 f32 .") == {"f32": ["+a1 b2"]}
    assert tell(start(overdue, patient), "a1 b2 c3 f31 f32 .") == {}


def test_the_four_levels_of_correctness_meet_in_what_they_say():
    """Liu 2012, §3.4: delayed (ordered, final), delayed unsorted (final), convergent unsorted (corrected): one answer
    in the end.
    """
    text, words = "PATTERN SEQ(A a, !C c, B b) WITHIN 10 s", "a5 b9 a1 b4 c7 a11 b13 c12 <*,30> f40 ."
    final = {}
    for level in levels(12):
        told = [c for answer in tell(start(text, level), words).values() for c in answer]
        final[type(level)] = {c[1:] for c in told if c[0] == "+"} - {c[1:] for c in told if c[0] == "-"}
        if not isinstance(level, lc.Aggressive):
            assert not any(c[0] == "-" for c in told)
        else:
            assert "-a5 b9" in told
    assert len({frozenset(f) for f in final.values()}) == 1
    assert final[lc.KSlack] == {"a1 b4"}
