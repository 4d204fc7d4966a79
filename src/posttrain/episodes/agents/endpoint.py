"""The server of one session: /v1/chat/completions and /v1/models, for clients with the session's token.

It runs in the process of the trajectory, on a port of its own, and knows nothing about other sessions.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from socketserver import TCPServer
from typing import Any

from posttrain.episodes.agents.answers import Answer, chunks, model, models, whole
from posttrain.episodes.agents.requests import Asked, Refused, read_request
from posttrain.errors import ConfigError

LONGEST_BODY = 64 * 2**20
"""Maximum bytes of a request."""
CHAT, MODELS = "/v1/chat/completions", "/v1/models"


class Endpoint:
    """The HTTP server of one session. It calls `answer` once for each chat request, never for two at a time."""

    def __init__(
        self, host: str, answer: Callable[[Asked], Answer], *, sampling: Mapping[str, Any], ignores: bool
    ) -> None:
        """`sampling` and `ignores` are passed to `read_request`; `answer` may raise `Refused`. ConfigError if this
        machine does not have the address."""
        self.token = secrets.token_urlsafe(32)
        self._answer, self._sampling, self._ignores = answer, sampling, ignores
        self._names, self._turn = count(1), threading.Lock()
        try:
            self._http = _Server((host, 0), _Handler)
        except OSError as error:
            raise ConfigError(
                given=f"agent.host = {host} cannot be listened on: {error}",
                allowed="an address of this machine",
                fix="Leave agent.host out: agents on this machine reach 127.0.0.1.",
            ) from None
        self._http.endpoint = self
        self.url = f"http://{host}:{self._http.server_port}/v1"

    def start(self) -> None:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Close the server, also one that was not started."""
        self._http.server_close()

    def knows(self, authorization: str) -> bool:
        """Return whether this Authorization header holds the token."""
        return hmac.compare_digest(authorization.encode(), f"Bearer {self.token}".encode())

    def chat(self, body: bytes) -> tuple[bool, Iterator[dict[str, Any]]]:
        """Return (whether the client wants a stream, the parts of the answer). Raises `Refused`."""
        try:
            given = json.loads(body)
        except (ValueError, RecursionError):
            raise Refused("the body is not JSON") from None
        asked = read_request(given, self._sampling, ignores=self._ignores)
        with self._turn:
            answer = self._answer(asked)
            name = f"{self.token[:8]}-{next(self._names)}"
        return asked.stream, chunks(answer, asked, name) if asked.stream else iter([whole(answer, asked, name)])


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    endpoint: Endpoint

    def server_bind(self) -> None:
        """Bind without asking a name server for this machine's name."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else the body may wait until the client has acknowledged the head
    server: _Server

    def do_GET(self) -> None:
        self._serve(self._models)

    def do_POST(self) -> None:
        self._serve(self._chat)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def _serve(self, respond: Callable[[bytes], None]) -> None:
        with suppress(ConnectionError):  # a client that is gone
            try:
                if not self.server.endpoint.knows(self.headers.get("Authorization", "")):
                    self.close_connection = True  # its body is not read
                    raise Refused("this is not the key of this session", status=401, code="invalid_api_key")
                respond(self._body())
            except Refused as refused:
                self._send(refused.body, refused.status)
            except ConnectionError:
                raise
            except Exception as error:
                self.close_connection = True
                failed = Refused(f"{type(error).__name__}: {error}", status=500, code="internal_error")
                self._send(failed.body, failed.status)

    def _body(self) -> bytes:
        """Read the body, even if the request will be refused: the next request follows it on the connection."""
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or int(length) > LONGEST_BODY or "Transfer-Encoding" in self.headers:
            self.close_connection = True
            raise Refused(f"a body must have a Content-Length of at most {LONGEST_BODY} bytes", status=413)
        return self.rfile.read(int(length))

    def _models(self, body: bytes) -> None:
        if self._path == MODELS:
            self._send(models())
        elif self._path.startswith(f"{MODELS}/"):
            self._send(model(self._path.removeprefix(f"{MODELS}/")))
        else:
            raise self._nothing_here()

    def _chat(self, body: bytes) -> None:
        if self._path != CHAT:
            raise self._nothing_here()
        streams, parts = self.server.endpoint.chat(body)
        if not streams:
            self._send(next(parts))
            return
        self.close_connection = True  # tells the client where the stream ends
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for part in parts:
            self.wfile.write(b"data: " + json.dumps(part).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")

    @property
    def _path(self) -> str:
        return self.path.partition("?")[0].rstrip("/")

    def _nothing_here(self) -> Refused:
        return Refused(f"there is no {self.command} {self._path}; there are POST {CHAT} and GET {MODELS}", status=404)

    def _send(self, body: Mapping[str, Any], status: int = 200) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
