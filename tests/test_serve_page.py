"""The live page in a real browser, before a real service."""

import json
import re
import time

import pytest

from tests.browser_fixture import browser, page  # noqa: F401 (fixtures)
from tests.serve_fixture import MINUTE, Server, lines, serving

FILE = """
name = "{name}"
[columns]
k = "text"
[[input]]
source = "from"
[[query]]
name = "{query}"
level = "aggressive(max_delay = 1 d)"
text = "PATTERN SEQ(A a, !B b, C c) WHERE [k] WITHIN 10 minutes RETURN a.k AS k"
[[query]]
name = "patient"
level = "conservative"
text = "PATTERN SEQ(A a, !B b, C c) WHERE [k] WITHIN 10 minutes RETURN a.k AS k"
[state]
uri = "{state}"
interval = "300 ms"
"""
NASTY = "<script>document.title='taken'</script><img src=x onerror=document.title='taken'>"
NOON = 19_000 * 1440 * MINUTE + 720 * MINUTE


@pytest.fixture(scope="module")
def flights(tmp_path_factory):
    with serving("--demo", "--speed", "3000", log=tmp_path_factory.mktemp("demo") / "log") as server:
        yield server


@pytest.fixture
def served(tmp_path):
    """Starts a pipeline of two levels, with these names."""
    running = []

    def start(name="shop", query="theft", port=0, env=None):
        file = tmp_path / "pipeline.toml"
        file.write_text(FILE.format(name=name, query=query, state=tmp_path / "state"), encoding="utf-8")
        running.append(Server([file, "--port", str(port)], tmp_path / "log", env))
        return running[-1]

    yield start
    for server in running:
        if server.process.poll() is None:
            server.kill()


def event(name, kind, minutes, k="x", source="till"):
    return {"id": name, "type": kind, "ts": NOON + minutes * MINUTE, "k": k, "from": source}


def text(page, selector):  # noqa: F811
    return page.locator(selector).inner_text()


def wait_for(page, script):  # noqa: F811
    """Until it is true. (Playwright's own way makes code of a text in the page, which the page's policy forbids.)"""
    end = time.monotonic() + 20
    while not page.evaluate(script):
        assert time.monotonic() < end, f"not within 20 s: {script}"
        page.wait_for_timeout(50)


def number(page, selector):  # noqa: F811
    return int(text(page, selector).split()[0].replace(",", "") or 0)


def painted(page, canvas, colour):  # noqa: F811
    """How many pixels of a canvas have about the colour of this variable."""
    return page.evaluate(
        """([canvas, variable]) => {
            const paint = document.createElement("canvas").getContext("2d");
            paint.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(variable);
            paint.fillRect(0, 0, 1, 1);
            const wanted = paint.getImageData(0, 0, 1, 1).data;
            const all = document.querySelectorAll("canvas")[canvas];
            const pixels = all.getContext("2d").getImageData(0, 0, all.width, all.height).data;
            let found = 0;
            for (let i = 0; i < pixels.length; i += 4)
                if (pixels[i + 3] > 100 && [0, 1, 2].every((c) => Math.abs(pixels[i + c] - wanted[c]) < 40)) found++;
            return found;
        }""",
        [canvas, colour],
    )


ARRIVALS, FIRST, SECOND = 3, 4, 5  # after three small ones


def sound(page, server):  # noqa: F811
    """Nothing went wrong in the page, and it asked nobody but the service."""
    assert page.wrong == []
    assert all(url.startswith(server.url) for url in page.asked), page.asked


def fits(page):  # noqa: F811
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_flights_appear_match_and_are_taken_back(page, flights):  # noqa: F811
    page.goto(flights.url)
    wait_for(page, "document.querySelectorAll('.row.lane').length === 3")
    heads = [page.locator(".row.lane h2").nth(i).inner_text() for i in range(3)]
    assert [head.split("\n")[0] for head in heads] == ["KSlack", "Conservative", "Aggressive"]
    wait_for(
        page, "document.querySelectorAll('#backs li').length > 0 && document.querySelectorAll('#lates li').length > 0"
    )
    assert number(page, "#total-matches") > number(page, "#total-back") > 0
    first = page.locator("#backs li").first.inner_text()
    assert "recovered-aggressive" in first and re.search(r"stood for|at once", first)
    assert page.locator("#backs li s").first.inner_text().count("→") == 1
    levels = [page.locator(".row.lane .bar.taken + .value").nth(i).inner_text() for i in range(3)]
    assert levels[:2] == ["0", "0"] and re.fullmatch(r"[\d,]+ \([\d.]+ %\)", levels[2])
    # Elements come and go meanwhile, and one that has just gone has text, but none as it was laid out.
    assert page.locator("#sources li b").all_text_contents() == ["EWR", "JFK", "LGA"]
    wait_for(page, "document.querySelector('#clock').textContent.startsWith('2013-03-')")
    before = text(page, "#clock")
    wait_for(page, f"document.querySelector('#clock').textContent > '{before}'")
    assert painted(page, ARRIVALS, "--type-2") > 200  # flights on time
    assert painted(page, 6, "--match") > 100 and painted(page, 6, "--back") > 20  # matches, and struck ones
    assert painted(page, FIRST, "--back") == 0  # not at a final level
    label = page.locator(".row.lane canvas").nth(2).get_attribute("aria-label")
    assert re.search(r"[\d,]+ matches known.*[\d,]+ taken back", label)
    assert fits(page)
    sound(page, flights)


def test_a_match_comes_is_held_and_is_taken_back_before_ones_eyes(page, served):  # noqa: F811
    server = served()
    page.goto(server.url)
    wait_for(page, "!document.querySelector('#empty').hidden")
    assert "/v1/events" in text(page, "#try") and '"type":"A"' in text(page, "#try")
    example = json.loads(re.search(r"-d '(.*)'", text(page, "#try"))[1])
    assert server.send(lines([{**example, "ts": NOON - 60 * MINUTE}]))[0] == 202
    wait_for(page, "document.querySelector('#empty').hidden")
    assert server.send(lines([event("a1", "A", 0), event("c1", "C", 4)]))[0] == 202
    wait_for(page, "document.querySelector('.known b').textContent === '1'")
    wait_for(page, "document.querySelectorAll('#helds li').length === 1")
    assert "a1 → c1" in text(page, "#helds") and "punctuation for B" in text(page, "#helds")
    page.wait_for_timeout(700)  # drawn to its end
    assert painted(page, FIRST, "--match") > 50 and painted(page, FIRST, "--back") == 0
    assert painted(page, SECOND, "--match") == 0 and painted(page, SECOND, "--wait") > 20
    assert server.send(lines([event("x", "A", 9, k="y"), event("b1", "B", 2)]))[0] == 202
    wait_for(page, "document.querySelectorAll('#backs li').length === 1")
    assert text(page, ".known b >> nth=0") == "0" and text(page, "#helds-none") == "No match waits."
    told = text(page, "#backs")
    assert "a1 → c1" in told and "B b1 came, 7 min late" in told and "stood for 5 min" in told
    page.wait_for_timeout(700)
    assert painted(page, FIRST, "--back") > 30
    assert server.send(b"{not json\n" + lines([event("old", "B", -3000)]))[0] == 202
    wait_for(
        page,
        "document.querySelectorAll('#deads li').length === 1 && document.querySelectorAll('#lates li').length === 1",
    )
    assert "after_max_delay" in text(page, "#lates") and "{not json" in text(page, "#deads")
    # Pointing at the match tells what it is, and what came over it.
    box = page.locator(".row.lane canvas").first.bounding_box()
    found = page.evaluate("() => null")
    for across in range(int(box["width"]) - 60, 0, -6):
        page.mouse.move(box["x"] + across, box["y"] + box["height"] - 13)
        if not page.locator("#tip").is_hidden():
            found = text(page, "#tip")
            break
    assert found and "a1 → c1" in found and "taken back when B b1 came" in found
    sound(page, server)


def test_text_from_outside_stays_text(page, served):  # noqa: F811
    server = served(query=NASTY, name=NASTY)
    page.goto(server.url)
    told = [("A", 0), ("C", 4), ("X", 30), ("B", 2), ("B", -3000), (NASTY, 5)]
    kinds = [event(f"{NASTY}{i}", kind, at, k=NASTY, source=NASTY) for i, (kind, at) in enumerate(told)]
    for one in kinds:
        assert server.send(lines([one]))[0] == 202
    server.send(NASTY.encode() + b"\n")
    for list_ in ("deads", "backs", "lates", "sources"):
        wait_for(page, f"document.querySelectorAll('#{list_} li').length > 0")
    for place in ("#backs", "#lates", "#deads", "#sources", "#queries", ".clause", "#types", "#name"):
        wait_for(page, f"document.querySelector('{place}').textContent.includes('<script>')")
    box = page.locator("#arrivals").bounding_box()
    for across in range(int(box["width"]) - 60, 0, -4):
        page.mouse.move(box["x"] + across, box["y"] + 26)
        if not page.locator("#tip").is_hidden():
            break
    assert "<script>" in page.locator("#tip").text_content()
    assert page.locator("main script, main img, .tip img, .tip script").count() == 0
    assert page.title().startswith("Latecomer") and "taken" not in page.title().replace(NASTY[:60], "")
    assert page.evaluate("document.title") != "taken"
    assert fits(page)
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_timeout(300)
    assert fits(page)
    sound(page, server)


def test_the_page_asks_for_the_token_and_then_remembers_it(page, served):  # noqa: F811
    token = "a-token-of-good-length"
    server = served(env={"LATECOMER_TOKEN": token})
    page.goto(server.url)
    assert page.locator("input[name=token]").count() == 1 and page.locator("#arrivals").count() == 0
    page.fill("input[name=token]", "not-the-one-that-is-needed")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert page.locator("input[name=token]").count() == 1
    page.fill("input[name=token]", token)
    with page.expect_navigation():
        page.keyboard.press("Enter")
    wait_for(page, "document.querySelector('#link')?.dataset.state === 'live'")
    assert token not in page.url and token not in page.evaluate("document.cookie")
    page.goto(server.url)
    wait_for(page, "document.querySelector('#link')?.dataset.state === 'live'")
    page.context.clear_cookies()
    server.kill()  # the page looks for it again, and is asked for the token by the new one
    again = served(env={"LATECOMER_TOKEN": token}, port=server.address[1])
    assert again.url == server.url
    page.wait_for_selector("input[name=token]", timeout=20_000)


def test_a_service_that_was_started_again_goes_on_in_the_open_page(page, served):  # noqa: F811
    server = served()
    page.goto(server.url)
    server.send(lines([event("a1", "A", 0), event("c1", "C", 4)]))
    wait_for(page, "document.querySelector('.known b')?.textContent === '1'")
    server.kill()
    wait_for(page, "document.querySelector('#link').dataset.state === 'lost'")
    page.wait_for_selector("#banner:not([hidden])", timeout=10_000)
    assert "does not answer" in text(page, "#banner")
    again = served(port=server.address[1])
    wait_for(page, "document.querySelector('#link').dataset.state === 'live'")
    assert page.locator("#banner").is_hidden()
    again.send(lines([event("a2", "A", 20), event("c2", "C", 24)]))
    wait_for(page, "document.querySelector('.known b').textContent === '1'")
    again.send(lines([event("end", "X", 30), event("b2", "B", 22)]))
    wait_for(page, "document.querySelectorAll('#backs li').length === 1")
    assert "a2 → c2" in text(page, "#backs")


@pytest.mark.parametrize("width, height", [(390, 844), (320, 568), (768, 1024), (1280, 800)])
def test_it_fits_the_window(page, flights, width, height):  # noqa: F811
    page.set_viewport_size({"width": width, "height": height})
    page.goto(flights.url)
    wait_for(page, "document.querySelectorAll('#backs li').length > 0")
    assert fits(page)
    assert page.evaluate(
        "[...document.querySelectorAll('button')].every((b) => b.getBoundingClientRect().right <= innerWidth)"
    )
    assert page.evaluate(
        "[...document.querySelectorAll('.plot canvas')].every((c) => c.clientWidth > 200 && c.clientHeight > 80)"
    )
    sound(page, flights)


def test_pause_zoom_and_colours_by_keys(page, flights):  # noqa: F811
    page.emulate_media(color_scheme="light")
    page.goto(flights.url)
    wait_for(page, "document.querySelector('#link').dataset.state === 'live'")
    assert text(page, "#span") == "8 h"
    page.keyboard.press("-")
    assert text(page, "#span") == "12 h"
    page.keyboard.press("+")
    page.keyboard.press("+")
    assert text(page, "#span") == "6 h"
    page.keyboard.press("Space")
    assert page.get_attribute("#pause", "aria-pressed") == "true" and text(page, "#link-text") == "paused"
    held = text(page, "#clock")
    page.wait_for_timeout(900)
    assert text(page, "#clock") == held
    page.keyboard.press("Space")
    wait_for(page, f"document.querySelector('#clock').textContent > '{held}'")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.keyboard.press("t")  # light
    page.keyboard.press("t")  # dark
    assert page.evaluate(ground) != light
    page.reload()
    assert page.evaluate(ground) != light  # it was kept
    page.keyboard.press("t")  # as the system has it
    assert page.evaluate(ground) == light
    for _ in range(4):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "BUTTON"
    sound(page, flights)


def test_who_wants_no_motion_gets_none(page, flights):  # noqa: F811
    page.emulate_media(reduced_motion="reduce")
    page.goto(flights.url)
    wait_for(page, "document.querySelector('#link').dataset.state === 'live'")
    page.keyboard.press("Space")
    page.wait_for_timeout(200)
    shots = []
    for _ in range(2):
        shots.append(page.screenshot())
        page.wait_for_timeout(400)
    assert shots[0] == shots[1]


def test_the_demo_needs_neither_spark_nor_a_broker(flights):
    """It was started without; and its code asks for nothing of the kind."""
    import subprocess
    import sys

    code = (
        "import sys; sys.modules.update(dict.fromkeys(['pyspark', 'pandas', 'duckdb'])); "
        "from latecomer.serve.demo import setting; print(len(setting()[1]))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "3\n"
    end = time.monotonic() + 20
    while not (frame := first_frame(flights))["totals"]["events"] and time.monotonic() < end:
        time.sleep(0.2)
    assert frame["totals"]["events"] > 0 and len(json.dumps(frame)) < 60_000


def first_frame(server):
    connection = server.connection()
    try:
        connection.request("GET", "/v1/live")
        answer = connection.getresponse()
        while not (line := answer.readline()).startswith(b"data: "):
            assert line, server.said()
        return json.loads(line[6:])
    finally:
        connection.close()
