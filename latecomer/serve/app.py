"""The HTTP API: requests in, and what the pipeline says out. What it takes and gives is in ``openapi.py``.

Rules: nothing here waits for the worker but by awaiting; an answer of 202 is given when events are safe and not before;
every other answer means that nothing of the request was taken. Errors are problem documents (RFC 9457).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from latecomer.errors import LatecomerError
from latecomer.serve.auth import COOKIE, PUBLIC, Gate
from latecomer.serve.inbox import Closed, Never, Overloaded
from latecomer.serve.journal import JournalFull
from latecomer.serve.limits import Rate, TooLarge, TooSlow, read_body
from latecomer.serve.metrics import ServiceMetrics
from latecomer.serve.openapi import FARTHEST, FORMS, ROWS, describe
from latecomer.serve.reading import Refused
from latecomer.serve.server import HEAD_BYTES
from latecomer.serve.sse import Bell, EventStream, changes
from latecomer.serve.watching import Frames

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from latecomer.serve.backend import Backend
    from latecomer.serve.config import Site

T = TypeVar("T")
#: Where the page is.
PAGE = Path(__file__).parent / "page"
#: Seconds that a request waits for the worker before it is told that this takes too long.
WAIT = 60.0
_MEDIA = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
}
_PAGE_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_TITLES = {
    400: "Bad request",
    409: "Conflict",
    421: "Misdirected request",
    422: "Not understood",
    431: "Head too large",
}


class Problem(HTTPException):
    """An answer that is no success; ``more``: further members of the document."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(status, detail, headers)
        self.more = more


class Punctuation(msgspec.Struct, forbid_unknown_fields=True):
    """The body of ``/v1/punctuate``."""

    ts: int | float
    type: str | None = None
    source: str | None = None
    key: dict[str, Any] | None = None


class Now(msgspec.Struct, forbid_unknown_fields=True):
    """The body of ``/v1/advance``."""

    now: int | float


class Api:
    """The application of one pipeline.

    Args:
        backend: the pipeline that runs.
        site: what of it is served, and to whom.
        metrics: where requests are counted.
    """

    def __init__(self, backend: Backend, site: Site, metrics: ServiceMetrics) -> None:
        self.backend, self.options, self.metrics = backend, site.options, metrics
        self.gate = Gate(site.token, site.options.host, site.options.hosts)
        self.rate = Rate(site.options.rate)
        self.bell = Bell()
        self._frames = None if backend.live is None else Frames(backend.live, self.bell)
        self._described = describe(site.pipeline, locked=self.gate.locked, name=site.name)
        routes = [
            Route("/", self.page),
            Route("/page/{name:path}", self.file),
            Route("/v1/changes", self.changes),
            Route("/v1/live", self.live),
            Route("/v1/matches", self.matches),
            Route("/v1/late", self.rows),
            Route("/v1/dead", self.rows),
            Route("/v1/explain", self.explain),
            Route("/metrics", self.scrape),
            Route("/healthz", self.healthz),
            Route("/readyz", self.readyz),
            Route("/openapi.json", self.openapi),
        ]
        if site.pipeline is not None:
            routes += [
                Route("/v1/events", self.events, methods=["POST"]),
                Route("/v1/punctuate", self.punctuate, methods=["POST"]),
                Route("/v1/advance", self.advance, methods=["POST"]),
                Route("/v1/finish", self.finish, methods=["POST"]),
            ]
        app = Starlette(
            routes=routes,
            lifespan=self._lifespan,
            exception_handlers={HTTPException: _told, LatecomerError: _told_error, Exception: _defect},  # type: ignore[dict-item]
        )
        self._paths = {route.path for route in routes}
        self.asgi: ASGIApp = _Guard(app, self)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()

        def ring() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self.bell.ring)

        self.backend.subscribe(ring)
        self.backend.start()
        try:
            yield
        finally:
            self.bell.stop()
            await run_in_threadpool(self.backend.stop)

    def end(self) -> None:
        """The server is about to end: streams of events end, so that it can."""
        self.bell.stop()

    # --- events ------------------------------------------------------------------------------------------------------

    async def events(self, request: Request) -> Response:
        """POST /v1/events."""
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media not in FORMS:
            raise Problem(415, f"content-type {media[:60]!r}: allowed are {', '.join(FORMS)}")
        key = request.headers.get("idempotency-key")
        if key is not None and not (0 < len(key) <= 200 and key.isascii() and key.isprintable() and " " not in key):
            raise Problem(422, "Idempotency-Key: up to 200 printable characters without blanks are needed")
        began = asyncio.get_running_loop().time()
        body = await self._body(request, min(self.options.max_body, self.options.inbox))
        receipt = await self._wait(self.backend.submit(body, FORMS[media], key, reserved=True))
        self.metrics.seconds.observe(asyncio.get_running_loop().time() - began)
        if receipt.dead and not receipt.accepted and not receipt.repeated:
            detail = f"none of {receipt.dead} lines is an event; all of them are dead letters now"
            raise Problem(422, detail, problems=list(receipt.problems))
        return JSONResponse(receipt.plain(), 202)

    async def _body(self, request: Request, most: int) -> bytes:
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise Problem(415, "a Content-Encoding is not taken: send the body as it is")
        return await read_body(request, self.backend.inbox, most, self.options.patience)

    async def punctuate(self, request: Request) -> Response:
        """POST /v1/punctuate."""
        told = await self._document(request, Punctuation)
        given = {"ts": _time("ts", told.ts), "type": told.type, "source": told.source, "key": told.key}
        return JSONResponse(await self._wait(self.backend.control("punctuate", **given)))

    async def advance(self, request: Request) -> Response:
        """POST /v1/advance."""
        told = await self._document(request, Now)
        return JSONResponse(await self._wait(self.backend.control("advance", now=_time("now", told.now))))

    async def finish(self, request: Request) -> Response:
        """POST /v1/finish."""
        return JSONResponse(await self._wait(self.backend.control("finish")))

    async def _document(self, request: Request, kind: type[T]) -> T:
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != "application/json":
            raise Problem(415, f"content-type {media[:60]!r}: application/json is needed")
        body = await self._body(request, 64 * 1024)
        self.backend.inbox.release(len(body))
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, ValueError, RecursionError) as problem:
            raise Problem(422, str(problem)) from problem

    async def _wait(self, future: Future[T]) -> T:
        try:
            async with asyncio.timeout(WAIT):
                return await asyncio.shield(asyncio.wrap_future(future))
        except TimeoutError:
            raise Problem(
                503, f"the worker did not get to it within {WAIT:g} s: it may still", {"Retry-After": "5"}
            ) from None

    # --- what came out -----------------------------------------------------------------------------------------------

    async def changes(self, request: Request) -> Any:
        """GET /v1/changes."""
        _only(request, "after", "limit", "wait")
        feed = self.backend.feeds["changes"]
        given, after = request.headers.get("last-event-id"), feed.newest
        for place in (request.query_params.get("after"), given):
            try:
                after = after if place is None else feed.place(place)
            except ValueError:
                told = f"{str(place)[:60]!r} is no position: give the id of an event that was sent"
                raise Problem(422, told) from None
        limit = _number(request, "limit", None, 1, ROWS)
        wait = _number(request, "wait", None, 0, 3_600)
        return self._stream(changes(feed, self.bell, after, limit=limit, patience=wait))

    async def live(self, request: Request) -> Any:
        """GET /v1/live."""
        if self._frames is None:
            raise Problem(404, "this service shows no page")
        _only(request, "since", "wait")
        given = request.headers.get("last-event-id")
        if given is not None and not (given.isascii() and given.isdigit() and len(given) < 19):
            raise Problem(422, f"{given[:60]!r} is no frame: give the id of an event that was sent")
        since = _number(request, "since", 0, 0, FARTHEST) or 0
        wait = _number(request, "wait", None, 0, 3_600)
        return self._stream(self._frames.follow(since if given is None else int(given), wait))

    def _stream(self, source: AsyncIterator[bytes]) -> EventStream:
        backend = self.backend
        if backend.readers >= self.options.readers:
            raise Problem(503, f"{backend.readers} readers follow already", {"Retry-After": "5"})

        def count(step: int) -> Callable[[], None]:
            return lambda: setattr(backend, "readers", backend.readers + step)

        return EventStream(source, self.options.patience, count(1), count(-1))

    async def matches(self, request: Request) -> Response:
        """GET /v1/matches."""
        _only(request, "limit", "query")
        limit = _number(request, "limit", 1_000, 1, ROWS)
        query = request.query_params.get("query")
        count, left_out, rows = await run_in_threadpool(self.backend.matches, limit or ROWS, query)
        told = b'{"count":%d,"left_out":%d,"matches":[%s]}' % (count, left_out, b",".join(rows))
        return Response(told, media_type="application/json")

    async def rows(self, request: Request) -> Response:
        """GET /v1/late and GET /v1/dead."""
        _only(request, "after", "limit")
        feed = self.backend.feeds[request.url.path.rpartition("/")[2]]
        after = _number(request, "after", max(feed.oldest - 1, 0), 0, FARTHEST)
        _, rows = await run_in_threadpool(feed.read, after or 0, _number(request, "limit", 1_000, 1, ROWS) or ROWS)
        told = b'{"oldest":%d,"newest":%d,"rows":[%s]}' % (feed.oldest, feed.newest, b",".join(rows))
        return Response(told, media_type="application/json")

    async def explain(self, request: Request) -> Response:
        """GET /v1/explain."""
        told = await self._wait(self.backend.explain())
        return Response(json.dumps(told, default=str), media_type="application/json")

    # --- operation ---------------------------------------------------------------------------------------------------

    async def scrape(self, request: Request) -> Response:
        """GET /metrics."""
        from prometheus_client.exposition import choose_encoder

        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(await run_in_threadpool(encode, self.metrics.registry), headers={"Content-Type": kind})

    async def healthz(self, request: Request) -> Response:
        """GET /healthz."""
        alive = self.backend.alive
        return JSONResponse({"alive": alive}, 200 if alive else 503)

    async def readyz(self, request: Request) -> Response:
        """GET /readyz."""
        ready = self.backend.ready and not self.bell.stopped
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def openapi(self, request: Request) -> Response:
        """GET /openapi.json."""
        return JSONResponse(self._described)

    # --- the page ----------------------------------------------------------------------------------------------------

    async def page(self, request: Request) -> Response:
        """GET /."""
        given = request.query_params.get("token")
        if given is not None and self.gate.locked:
            if not self.gate.knows(given):
                return _file("token.html", 401)
            answer = RedirectResponse("/", 303, headers=_PAGE_HEADERS)
            answer.set_cookie(COOKIE, self.gate.cookie(), httponly=True, samesite="strict", path="/")
            return answer
        return _file("index.html") if self.gate.admits(request) else _file("token.html", 401)

    async def file(self, request: Request) -> Response:
        """GET /page/…."""
        return _file(request.path_params["name"])


class _Guard:
    """Before everything else: whether the request is meant for us, not too often, and from someone who may ask. After
    it: the count of answers."""

    def __init__(self, app: ASGIApp, api: Api) -> None:
        self._app, self._api = app, api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        refusal = self._refusal(Request(scope))
        path = str(scope["path"])
        known = path if path in self._api._paths else "/page/" if path.startswith("/page/") else "other"
        try:
            await (self._app if refusal is None else refusal)(scope, receive, counted)
        finally:
            self._api.metrics.requests.labels(known, str(status)).inc()

    def _refusal(self, request: Request) -> Response | None:
        api, path = self._api, request.url.path
        if sum(len(name) + len(value) for name, value in request.scope["headers"]) > HEAD_BYTES:
            return _problem(431, f"the head of the request has more than {HEAD_BYTES} bytes")
        strange = api.gate.strange(request)
        if strange is not None:
            return _problem(*strange)
        wait = api.rate.wait(request.client.host if request.client else "")
        if wait:
            told = f"more than {api.options.rate:g} requests per second: try again in {wait} s"
            return _problem(429, told, {"Retry-After": str(wait)})
        open_to_all = path in PUBLIC or path == "/" or path.startswith("/page/")
        if not open_to_all and not api.gate.admits(request):
            return _problem(401, "the token is needed: Authorization: Bearer …", {"WWW-Authenticate": "Bearer"})
        return None


def _only(request: HTTPConnection, *known: str) -> None:
    """Refuse parameters that are written wrong, rather than do something else than was meant."""
    for name, _ in request.query_params.multi_items():
        if name not in known:
            raise Problem(422, f"there is no parameter {name[:40]!r}: there are {', '.join(known)}")


def _number(request: HTTPConnection, name: str, usual: int | None, least: int, most: int) -> int | None:
    """A whole number from the query."""
    given = request.query_params.getlist(name)
    if not given:
        return usual
    try:
        value = int(given[-1]) if len(given) == 1 and len(given[0]) < 21 else None
    except ValueError:
        value = None
    if value is None or not least <= value <= most:
        raise Problem(422, f"{name}={given[-1][:40]!r}: a whole number from {least} to {most} is needed")
    return value


def _time(name: str, value: int | float) -> int:
    """A time in whole units, as JSON has it: 5.0 is one."""
    if value != value or abs(value) > FARTHEST:
        raise Problem(422, f"{name}={value} is beyond all time")
    if int(value) != value:
        raise Problem(422, f"{name}={value}: a whole number of the stream's units is needed")
    return int(value)


def _file(name: str, status: int = 200) -> Response:
    path = PAGE / name
    media = _MEDIA.get(path.suffix)
    if "/" in name or name.startswith(".") or media is None or not path.is_file():
        return _problem(404, "there is no such page")
    return FileResponse(path, status, _PAGE_HEADERS, media)


def _problem(status: int, detail: str, headers: Mapping[str, str] | None = None, **more: Any) -> Response:
    title = _TITLES.get(status) or HTTPException(status).detail
    told = {"title": title, "status": status, "detail": detail, **more}
    return JSONResponse(told, status, dict(headers or {}), "application/problem+json")


async def _told(request: Request, problem: HTTPException) -> Response:
    return _problem(problem.status_code, problem.detail, problem.headers, **getattr(problem, "more", {}))


async def _told_error(request: Request, problem: LatecomerError) -> Response:
    if isinstance(problem, Overloaded):
        return _problem(429, str(problem), {"Retry-After": str(problem.retry_after)})
    if isinstance(problem, TooLarge):
        return _problem(413, str(problem))
    if isinstance(problem, TooSlow):
        return _problem(408, str(problem), {"Connection": "close"})
    if isinstance(problem, JournalFull):
        return _problem(503, str(problem), {"Retry-After": "10"})
    if isinstance(problem, Never):
        return _problem(409, str(problem))
    if isinstance(problem, Closed):
        return _problem(503, str(problem), {"Retry-After": "10"})
    if isinstance(problem, Refused):
        shown = [{"line": p.line, "reason": p.reason, "detail": p.detail} for p in problem.problems[:10]]
        return _problem(422, str(problem), problems=shown)
    return _problem(422, str(problem))


async def _defect(request: Request, problem: Exception) -> Response:
    return _problem(500, "a defect of the service; its log says more")
