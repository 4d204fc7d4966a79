"""A judge on a real local HTTP server, whose verdicts follow a rule and which can misbehave."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Rule = Callable[[Mapping[str, str]], str]
"""Maps the texts between the tags of a question to the text of a reply."""


def texts_of(question: str) -> dict[str, str]:
    """The texts between the tags of a question: request, answer_a, answer_b, answer, reference."""
    return {name: text for name, _, text in re.findall(r"<(\w+)-(\w+)>\n(.*?)\n</\1-\2>", question, re.DOTALL)}


def longer_wins(texts: Mapping[str, str]) -> str:
    a, b = len(texts["answer_a"]), len(texts["answer_b"])
    return f"One is longer.\nVerdict: {'tie' if a == b else 'A' if a > b else 'B'}"


def one_point_per_letter(texts: Mapping[str, str]) -> str:
    return f"I count.\nScore: {min(5, len(texts['answer']))}"


def same_text(texts: Mapping[str, str]) -> str:
    return f"Verdict: {'correct' if texts['answer'] == texts['reference'] else 'incorrect'}"


@dataclass
class Server:
    """The server's behaviour, and the requests that it received."""

    rule: Rule = longer_wins
    faults: dict[int, tuple[int, dict[str, str]]] = field(default_factory=dict)
    """Maps the number of a request, counted from 0, to the status and headers that it gets instead of a verdict."""
    always: tuple[int, dict[str, str]] | None = None
    """Status and headers that every request gets."""
    seconds: float = 0.0
    drip: bool = False
    """Whether the server sends a byte at a time, and never the end."""
    raw: bytes | None = None
    """A body that is sent instead of a completion."""
    without_usage: bool = False
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    busy: int = 0
    most_busy: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, body: dict[str, Any], key: str | None, path: str) -> tuple[int, dict[str, str]] | None:
        with self.lock:
            number = len(self.requests)
            self.requests.append(body)
            self.keys.append(key)
            self.times.append(time.monotonic())
            self.busy += 1
            self.most_busy = max(self.most_busy, self.busy)
        return self.always or self.faults.get(number)

    def hold(self) -> None:
        """Wait before the reply is computed."""
        time.sleep(self.seconds)

    def reply(self, body: dict[str, Any], key: str | None, path: str) -> bytes:
        texts = texts_of(body["messages"][0]["content"]) | {"turns": str(len(body["messages"]))}
        return self.completion(self.rule(texts))

    def completion(self, text: str) -> bytes:
        if self.raw is not None:
            return self.raw
        usage = {} if self.without_usage else {"usage": {"total_tokens": 100}}
        return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}], **usage}).encode()


class Handler(BaseHTTPRequestHandler):
    server: Any

    def do_POST(self) -> None:
        judge: Server = self.server.judge
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers.get("Authorization")
        fault = judge.begin(body, key, self.path)
        judge.hold()
        with judge.lock:
            judge.busy -= 1
        status, headers = fault or (200, {})
        content = b'{"error": "not now"}' if fault else judge.reply(body, key, self.path)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(10**6 if judge.drip else len(content)))
        self.end_headers()
        self._write(content, drip=judge.drip)

    def _write(self, content: bytes, *, drip: bool) -> None:
        try:
            while drip:
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.05)
            self.wfile.write(content)
        except OSError:  # the client has disconnected
            pass

    def log_message(self, *_: Any) -> None:
        pass


class Listening(ThreadingHTTPServer):
    request_queue_size = 128
    """With Python's 5, a client that opens more connections at once waits a second and tries again."""


@contextmanager
def serving(judge: Server | None = None, *, port: int = 0, **behaviour: Any) -> Iterator[Server]:
    judge = judge or Server(**behaviour)
    http = Listening(("127.0.0.1", port), Handler)
    http.judge = judge  # type: ignore[attr-defined]
    http.daemon_threads = True
    judge.url = f"http://127.0.0.1:{http.server_port}/v1"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield judge
    finally:
        http.shutdown()
        http.server_close()
