"""Who may look: browsers of this machine that have the token of this start, and they may do nothing but read.

    loopback      it listens on 127.0.0.1 alone; from elsewhere a tunnel leads there (ssh -L)
    token         drawn at random at each start; part of the address that is printed, then a cookie
    Host          has to be a name of the machine itself: a page elsewhere whose name is made to point here is refused
    GET, HEAD     nothing else, and no header that lets another site read what is answered
    names         of runs are looked up among those that were found, never joined to a path

Pages forbid every source but their own style and script, as reports do (document.py); those that are kept up to date
may ask this server, and no other, for themselves.
"""

from __future__ import annotations

import asyncio
import errno
import re
import secrets
import socket
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from posttrain.errors import ConfigError
from posttrain.files import read_inside
from posttrain.report.dashboard import pages
from posttrain.report.dashboard.news import MOST_LISTENERS, News, state_of_all, state_of_runs
from posttrain.report.dashboard.reader import Reader
from posttrain.report.dashboard.runs import Brief, Place, Standing, Unreadable, as_json, find_runs, standing
from posttrain.report.store import finite

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import (
        HTMLResponse,
        JSONResponse,
        PlainTextResponse,
        RedirectResponse,
        Response,
        StreamingResponse,
    )
    from starlette.routing import Route
    from starlette.types import ASGIApp, Receive, Scope, Send
except ImportError:
    raise ConfigError(
        given="posttrain dash needs starlette and uvicorn, of which one is not installed",
        allowed="an environment with the extra `dash`",
        fix='pip install "posttrain[dash]"',
    ) from None

HOST, FIRST_PORT, PORTS = "127.0.0.1", 8765, 20
_NAMES = ("127.0.0.1", "localhost", "[::1]")
_OURS = re.compile(rf"(?:{'|'.join(map(re.escape, _NAMES))})(?::\d+)?", re.IGNORECASE)
EVENTS = "text/event-stream"
_POLICY = "content-security-policy"
_AS_WRITTEN = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'"
)
"""For pages that lie in the folder: whoever wrote them, they can be read, and nothing in them can act."""
MOST_PAGE = 30_000_000
_HEADERS = (
    (_POLICY.encode(), b"frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class Dashboard:
    """The address of one start, and the server behind it."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        """Raises ConfigError for a folder that is not there and a port that is taken; without one the next is tried."""
        if not folder.is_dir():
            raise ConfigError(
                given=f"{folder} is not a folder",
                allowed="the folder that runs are written to, or one run",
                fix="posttrain dash FOLDER; without FOLDER it is runs, below the current one.",
            )
        self._socket = _listen(port)
        self.port: int = self._socket.getsockname()[1]
        self._token = secrets.token_urlsafe(32)
        app = application(folder, self._token, f"posttrain_dash_{self.port}", lambda: self._server.should_exit)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                lifespan="off",
                ws="none",
                timeout_graceful_shutdown=2,
            )
        )

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}/?{urlencode({'token': self._token})}"

    def serve(self) -> None:
        """Until Ctrl-C."""
        with self._socket, suppress(KeyboardInterrupt):
            self._server.run(sockets=[self._socket])
        READER.close()


def application(folder: Path, token: str, cookie: str, stopping: Callable[[], bool]) -> ASGIApp:
    """The pages of the runs below `folder`, behind `Guarded`; `stopping` ends what would be sent without end."""
    routes = [
        Route(pages.NEWS, _telling(folder, News(stopping))),
        Route("/", _answering(folder, _overview)),
        Route("/overlay", _answering(folder, _overlay)),
        Route("/runs/{name:path}/report.html", _answering(folder, _report)),
        Route("/runs/{name:path}/as-written.html", _answering(folder, _as_written)),
        Route("/runs/{name:path}/rollouts", _answering(folder, _rollouts)),
        Route("/api/runs", _answering(folder, _all_as_json)),
        Route("/api/runs/{name:path}", _answering(folder, _one_as_json)),
    ]
    return Guarded(Starlette(routes=routes), token, cookie)


class Guarded:
    """Refuses who is not meant, before anything is looked at; gives whoever brings the token a cookie in its place."""

    def __init__(self, app: ASGIApp, token: str, cookie: str) -> None:
        self._app, self._token, self._cookie = app, token, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refused = self._refusal(Request(scope))

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                framed = any(b"frame-ancestors" in value for _, value in message["headers"])
                message["headers"] = [*message["headers"], *_HEADERS[1 if framed else 0 :]]
            await send(message)

        await (refused or self._app)(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> Response | None:
        if not _OURS.fullmatch(request.headers.get("host") or ""):
            return PlainTextResponse(f"Ask for {' or '.join(_NAMES)}, by the address that was printed.\n", 421)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("Nothing can be changed here: GET alone.\n", 405, {"allow": "GET, HEAD"})
        given = request.query_params.get("token")
        if given is not None and self._is_token(given):
            if _is_api(request):  # a program keeps no cookies
                return None
            rest = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
            path = "/" + request.url.path.lstrip("/")  # with two slashes it would be the name of another machine
            response = RedirectResponse(path + (f"?{urlencode(rest)}" if rest else ""), 303)
            response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
            return response
        if given is None and self._is_token(request.cookies.get(self._cookie, "")):
            return None
        return PlainTextResponse("Open the whole address that `posttrain dash` printed, its token included.\n", 403)

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self._token.encode())


# --- the pages --------------------------------------------------------------------------------------------------------


def _answering(folder: Path, page: Callable[[Path, Request], Response]) -> Callable[[Request], Response]:
    """In a thread of its own; what is not there, or goes away while it is read, is said and ends nothing."""

    def answer(request: Request) -> Response:
        try:
            return page(folder, request)
        except Unreadable as reason:
            return _failure(request, f"The run cannot be shown: {reason}.", 500)
        except (LookupError, OSError) as reason:
            return _failure(request, str(reason.args[-1] if reason.args else reason), 404)
        except Exception as reason:
            traceback.print_exc()
            return _failure(
                request, f"It could not be shown ({type(reason).__name__}); the terminal has the details.", 500
            )

    return answer


def _failure(request: Request, words: str, status: int) -> Response:
    if _is_api(request):
        return JSONResponse({"error": words}, status)
    return HTMLResponse(pages.failure(words), status)


def _is_api(request: Request) -> bool:
    return request.url.path.startswith("/api/")


def _overview(folder: Path, _: Request) -> Response:
    place = find_runs(folder)
    found = _all(place)
    return HTMLResponse(pages.overview(folder, place, found, state_of_all(place, found)))


def _report(folder: Path, request: Request) -> Response:
    place, name = find_runs(folder), request.path_params["name"]
    if name in place.pages:
        inside = [run for run in place.runs if run.startswith(f"{name}/")]
        return HTMLResponse(pages.framed(name, inside))
    path = _run(place, name)
    seen = state_of_runs([path])
    return HTMLResponse(READER("report", str(path), name, seen))


def _as_written(folder: Path, request: Request) -> Response:
    """The page of a comparison, a sweep or a pipeline, for the frame of `_report`."""
    place, name = find_runs(folder), request.path_params["name"]
    if name not in place.pages:
        raise LookupError(f"There is no page of the name {name!r} here.")
    written = read_inside(place.pages[name], "report.html", most=MOST_PAGE).decode("utf-8", errors="replace")
    return HTMLResponse(written, headers={_POLICY: _AS_WRITTEN})


def _rollouts(folder: Path, request: Request) -> Response:
    name = request.path_params["name"]
    path = _run(find_runs(folder), name)
    return HTMLResponse(READER("rollouts", str(path), name, dict(request.query_params)))


def _overlay(folder: Path, request: Request) -> Response:
    place, names = find_runs(folder), list(dict.fromkeys(request.query_params.getlist("run")))
    if not 2 <= len(names) <= pages.MOST_OVERLAID:
        words = f"{len(names)} runs were chosen. Choose two to {pages.MOST_OVERLAID}."
        return HTMLResponse(pages.failure(words), 400)
    runs = {name: _run(place, name) for name in names}
    seen = state_of_runs(list(runs.values()))
    return HTMLResponse(READER("overlay", {name: str(path) for name, path in runs.items()}, seen))


def _all_as_json(folder: Path, _: Request) -> Response:
    place = find_runs(folder)
    return JSONResponse(finite({"runs": [as_json(run) for run in _all(place)], "complete": place.complete}))


def _one_as_json(folder: Path, request: Request) -> Response:
    name = request.path_params["name"]
    path = _run(find_runs(folder), name)
    return JSONResponse(finite(as_json(standing(name, path, _brief))) | READER("everything", str(path)))


def _telling(folder: Path, news: News) -> Callable[[Request], Awaitable[Response]]:
    """Server-sent events about the runs that are named, or about all."""

    async def tell(request: Request) -> Response:
        names, seen = sorted(set(request.query_params.getlist("run"))), request.query_params.get("seen", "")
        if len(names) > pages.MOST_OVERLAID:
            return PlainTextResponse(f"News of {pages.MOST_OVERLAID} runs at most.\n", 400)
        place = await asyncio.to_thread(find_runs, folder)
        try:
            look = partial(state_of_runs, [_run(place, name) for name in names]) if names else partial(_state, folder)
        except LookupError as reason:
            return PlainTextResponse(f"{reason}\n", 404)
        if request.method == "HEAD":
            return Response(media_type=EVENTS)
        if news.listeners >= MOST_LISTENERS:
            return PlainTextResponse("Too many pages listen already.\n", 503)
        return StreamingResponse(news.of(repr(names), look, seen), media_type=EVENTS)

    return tell


def _state(folder: Path) -> str:
    place = find_runs(folder)
    return state_of_all(place, _all(place))


READER = Reader()
"""The reader of this process: everything shown of a run comes from it."""


def _brief(path: Path) -> Brief:
    return Brief.of(READER("brief", str(path)))


def _all(place: Place) -> list[Standing]:
    return [standing(name, path, _brief) for name, path in place.runs.items()]


def _run(place: Place, name: str) -> Path:
    """Raises LookupError with words for the reader."""
    if name not in place.runs:
        raise LookupError(f"There is no run of the name {name!r} here.")
    return place.runs[name]


def _listen(port: int | None) -> socket.socket:
    """A socket of this machine alone: at `port`, or at the first of `PORTS` that is free."""
    tried = range(FIRST_PORT, FIRST_PORT + PORTS) if port is None else [port]
    for number_of_port in tried:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, number_of_port))
            listening.listen(100)
        except OSError as reason:
            listening.close()
            if reason.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            continue
        return listening
    ports = f"port {port} is" if port is not None else f"the ports {FIRST_PORT} to {FIRST_PORT + PORTS - 1} are"
    raise ConfigError(
        given=f"{ports} taken, or may not be used",
        allowed="a free port",
        fix="posttrain dash --port 0 takes one that is free.",
    )
