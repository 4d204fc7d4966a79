"""The server of the dashboard, and its access control: browsers of this machine with the token, and only reading.

    loopback      the server listens only on 127.0.0.1; other machines need a tunnel (ssh -L)
    token         drawn at random at each start; it is part of the printed address, then a cookie
    Host          must be a name of this machine: this refuses other names that resolve to it (DNS rebinding)
    GET, HEAD     no other method, and no header that lets another site read the answers (no CORS)
    run names     are looked up among the runs that were found, never joined to a path

Pages allow no source except their own style and script, as reports do (document.py). Pages with live updates may also
connect to this server, and to no other.
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
        given="posttrain dash needs starlette and uvicorn, but at least one of them is not installed",
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
"""Policy for stored pages, which anyone may have written: they can be read, but nothing in them can act."""
MOST_PAGE = 30_000_000
_HEADERS = (
    (_POLICY.encode(), b"frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class Dashboard:
    """The server of one start of the dashboard, and its address."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        """Raise ConfigError if the folder is missing or the port is taken. Without a port, use the first free one."""
        if not folder.is_dir():
            raise ConfigError(
                given=f"{folder} is not a folder",
                allowed="the folder that runs are written to, or one run",
                fix="Run posttrain dash FOLDER. The default is runs, in the current folder.",
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
        """Serve until Ctrl-C."""
        with self._socket, suppress(KeyboardInterrupt):
            self._server.run(sockets=[self._socket])
        READER.close()


def application(folder: Path, token: str, cookie: str, stopping: Callable[[], bool]) -> ASGIApp:
    """Return the app with the pages of the runs below `folder`, behind `Guarded`. `stopping` ends event streams."""
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
    """Middleware that refuses unauthorised requests before any page runs, and replaces a valid token by a cookie."""

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
            return PlainTextResponse(f"Use {' or '.join(_NAMES)}, as in the printed address.\n", 421)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("The dashboard is read-only: use GET.\n", 405, {"allow": "GET, HEAD"})
        given = request.query_params.get("token")
        if given is not None and self._is_token(given):
            if _is_api(request):  # a program keeps no cookies
                return None
            rest = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
            path = "/" + request.url.path.lstrip("/")  # a path that begins with two slashes would name another machine
            response = RedirectResponse(path + (f"?{urlencode(rest)}" if rest else ""), 303)
            response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
            return response
        if given is None and self._is_token(request.cookies.get(self._cookie, "")):
            return None
        return PlainTextResponse("Open the whole address that `posttrain dash` printed, including its token.\n", 403)

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self._token.encode())


# --- the pages --------------------------------------------------------------------------------------------------------


def _answering(folder: Path, page: Callable[[Path, Request], Response]) -> Callable[[Request], Response]:
    """Return a handler that runs in its own thread. A missing run gives an error page and does not end the server."""

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
    """Return the stored page of a comparison, sweep or pipeline, for the frame of `_report`."""
    place, name = find_runs(folder), request.path_params["name"]
    if name not in place.pages:
        raise LookupError(f"There is no page named {name!r} here.")
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
    """Return a handler that sends server-sent events about the named runs, or about all."""

    async def tell(request: Request) -> Response:
        names, seen = sorted(set(request.query_params.getlist("run"))), request.query_params.get("seen", "")
        if len(names) > pages.MOST_OVERLAID:
            return PlainTextResponse(f"Name at most {pages.MOST_OVERLAID} runs.\n", 400)
        place = await asyncio.to_thread(find_runs, folder)
        try:
            look = partial(state_of_runs, [_run(place, name) for name in names]) if names else partial(_state, folder)
        except LookupError as reason:
            return PlainTextResponse(f"{reason}\n", 404)
        if request.method == "HEAD":
            return Response(media_type=EVENTS)
        if news.listeners >= MOST_LISTENERS:
            return PlainTextResponse("Too many pages are open already.\n", 503)
        return StreamingResponse(news.of(repr(names), look, seen), media_type=EVENTS)

    return tell


def _state(folder: Path) -> str:
    place = find_runs(folder)
    return state_of_all(place, _all(place))


READER = Reader()
"""The reader of this server. All content of the pages about runs comes from it."""


def _brief(path: Path) -> Brief:
    return Brief.of(READER("brief", str(path)))


def _all(place: Place) -> list[Standing]:
    return [standing(name, path, _brief) for name, path in place.runs.items()]


def _run(place: Place, name: str) -> Path:
    """Return the folder of a run. Raises LookupError with a message for the page."""
    if name not in place.runs:
        raise LookupError(f"There is no run named {name!r} here.")
    return place.runs[name]


def _listen(port: int | None) -> socket.socket:
    """Return a socket on the loopback interface: at `port`, or at the first free one of `PORTS` ports."""
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
        fix="posttrain dash --port 0 picks a free port.",
    )
