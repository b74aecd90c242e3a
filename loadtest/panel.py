"""The knobs as a page beside Locust's own: ``/disorder``. It takes effect with the next slice of events.

Rule: what makes no sense is refused with the fleet's own words, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from flask import Blueprint, Response, jsonify, request

from latecomer.errors import ConfigError
from loadtest.fleet import TAILS, WAYS, Knobs

#: What each knob is, in a few words.
WORDS = {
    "late": "share of the events that are delayed",
    "delay": "scale of the delays, ms",
    "tail": f"shape of the delays: {', '.join(TAILS)}",
    "most": "longest delay, ms",
    "ways": f"weights of the ways that events take: {', '.join(WAYS)}",
    "duplicates": "share of the events that are sent twice",
    "future": "share of extra events stamped an hour ahead",
    "poison": "share of extra messages that are broken",
    "outage": "sources that are cut off; with 0 they are back and send all they held",
}

_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Disorder</title>
<link rel="icon" href="data:,"><style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #1f2933; background: #fff; max-width: 46em; margin: 2em auto; }}
label {{ display: grid; grid-template-columns: 8em 1fr; gap: 0 1em; margin: .7em 0; }}
small {{ grid-column: 2; color: #5f6b7a; }} pre {{ white-space: pre-wrap; }}
input {{ font: inherit; padding: .2em .4em; }} button {{ font: inherit; padding: .4em 1.4em; }}
.said {{ background: #f5f7f9; border-left: 4px solid #2457a6; padding: .5em 1em; white-space: pre-wrap; }}
</style></head><body><h1>Disorder</h1><p><a href="/">Locust</a></p>{said}
<form method="post">{fields}<button>Apply</button></form><h2>So far</h2><pre>{state}</pre></body></html>"""
_FIELD = '<label><b>{name}</b><input name="{name}" value="{value}"><small>{words}</small></label>'


#: What Locust's own page is given.
_LINK = (
    b'<a href="/disorder" style="position:fixed;right:1em;bottom:1em;z-index:9;padding:.4em 1em;border-radius:1em;'
    b'background:#2457a6;color:#fff;font:15px system-ui,sans-serif;text-decoration:none">Disorder</a>'
)


def linked(answer: Response) -> Response:
    """Locust's page with a link to ours; every other answer as it is."""
    if request.path == "/" and answer.mimetype == "text/html" and answer.status_code == 200:
        answer.direct_passthrough = False
        answer.set_data(answer.get_data().replace(b"</body>", _LINK + b"</body>", 1))
    return answer


def panel(
    knobs: Callable[[], Knobs], turn: Callable[[Knobs], None], state: Callable[[], Mapping[str, Any]]
) -> Blueprint:
    """The page.

    Args:
        knobs: the present ones.
        turn: sets others.
        state: what else to show.
    """
    blueprint = Blueprint("disorder", __name__)

    def page(said: str, code: int) -> Response:
        fields = "".join(
            _FIELD.format(name=name, value=escape(value, quote=True), words=escape(WORDS[name]))
            for name, value in knobs().typed().items()
        )
        told = "\n".join(f"{name:14} {value}" for name, value in state().items())
        shown = f'<p class="said" role="status">{escape(said)}</p>' if said else ""
        return Response(_PAGE.format(said=shown, fields=fields, state=escape(told)), code, mimetype="text/html")

    @blueprint.get("/disorder")
    def show() -> Response:
        return page("", 200)

    @blueprint.post("/disorder")
    def change() -> Response:
        try:
            turn(knobs().turned(request.form.to_dict()))
        except ConfigError as problem:
            return page(f"Not applied: {problem}", 400)
        return page("Applied.", 200)

    @blueprint.get("/disorder.json")
    def told() -> Response:
        return jsonify({"knobs": knobs().typed(), "state": dict(state())})

    return blueprint
