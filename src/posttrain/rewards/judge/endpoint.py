"""A judge behind an OpenAI-compatible endpoint: POST {url}/chat/completions, concurrently, with retries and a budget.

The standard library sends the requests. Redirects are refused, because they would send the key to another host.
"""

from __future__ import annotations

import email.utils
import hashlib
import http.client
import json
import os
import queue
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from posttrain.errors import ConfigError
from posttrain.rewards.judge.budget import Budget
from posttrain.rewards.judge.records import Conversation, Reply

if TYPE_CHECKING:
    from posttrain.config import JudgeConfig

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before the first retry, and the maximum pause. Each pause is twice as long as the one before."""
LONGEST_REPLY = 4_000_000
"""Maximum size of a reply, in bytes."""
_PASSING = {408, 409, 425, 429}
_REFUSED = {401, 403, 404}
"""HTTP statuses that a retry may change, in addition to 5xx; and statuses that every other request will get, too."""


@dataclass(kw_only=True, eq=False)
class _Failure(Exception):
    """An attempt without a reply."""

    message: str
    passing: bool = True
    for_all: bool = False
    wait: float | None = None
    """Seconds that the server asks the client to wait."""


class Endpoint:
    """A `Backend` that asks a server."""

    def __init__(self, settings: JudgeConfig) -> None:
        """Raises ConfigError if the key is not in the environment."""
        assert settings.url is not None
        self.settings = settings
        self.budget = Budget(settings.max_calls, settings.max_total_tokens)
        self._url = settings.url.rstrip("/") + "/chat/completions"
        self._key = _key(settings.api_key_env)
        self._opener = urllib.request.build_opener(_NoRedirect)
        self.slots = threading.Semaphore(settings.concurrency)
        """One slot for each concurrent request, whichever call it belongs to."""
        self._shifts: list[_Shift] = []

    def identity(self) -> str:
        return f"{self._url} {self.settings.model}"

    def answer(self, conversations: Sequence[Conversation], keep: Callable[[int, Reply], None]) -> list[Reply]:
        """One reply per conversation, in order. Questions that are open after `judge.deadline` become failures.

        Threads that are still waiting are then abandoned. They end with their request or with the process.
        """
        shift = _Shift(self, conversations)
        self._shifts.append(shift)
        try:
            found = shift.work(keep)
        finally:
            shift.over.set()
            self._shifts.remove(shift)
        if len(found) < len(conversations):
            self.slots = threading.Semaphore(self.settings.concurrency)  # the abandoned threads keep the old ones
        self.budget.raise_failure()
        late = Reply(error=f"no reply within judge.deadline = {self.settings.deadline:g} s")
        return [found.get(place, late) for place in range(len(conversations))]

    def abandon(self) -> None:
        """End all calls of `answer` in other threads. They return failures."""
        for shift in list(self._shifts):
            shift.abandon()

    def ask(self, conversation: Conversation, over: threading.Event, refused: list[str]) -> Reply:
        """Send a question until there is a reply, the retries are used up, or further tries are useless."""
        started, calls, error = time.perf_counter(), 0, ""
        for attempt in range(self.settings.retries + 1):
            if stop := (refused[0] if refused else self.budget.allow()):
                error = f"{stop}; before that: {error}" if error else stop
                break
            calls += 1
            try:
                reply = self._send(conversation)
                return replace(reply, calls=calls, seconds=time.perf_counter() - started)
            except _Failure as failure:
                error = failure.message
                if failure.for_all:
                    refused.append(error)
                if not failure.passing or attempt == self.settings.retries:
                    break
                if over.wait(_pause(attempt) if failure.wait is None else min(failure.wait, self.settings.deadline)):
                    break
        tries = f" ({calls} tries)" if calls > 1 else ""
        return Reply(error=error + tries, calls=calls, seconds=time.perf_counter() - started)

    def body(self, conversation: Conversation) -> dict[str, Any]:
        """The body of a request. `judge.request` adds fields, and a null value removes a field."""
        settings = self.settings
        fields: dict[str, Any] = {
            "model": settings.model,
            "messages": list(conversation.messages),
            "max_tokens": settings.max_tokens,
            "temperature": settings.temperature,
        }
        if settings.temperature > 0:
            fields |= {"top_p": settings.top_p, "seed": seed_of(conversation)}
        return {name: value for name, value in {**fields, **settings.request}.items() if value is not None}

    def without_key(self, text: str) -> str:
        """The text without the key. Servers may echo the key, and it must not reach a file."""
        return text.replace(self._key, "***") if self._key else text

    def _send(self, conversation: Conversation) -> Reply:
        headers = {"Content-Type": "application/json", "User-Agent": "posttrain"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        data = json.dumps(self.body(conversation)).encode()
        request = urllib.request.Request(self._url, data=data, headers=headers, method="POST")
        try:
            with self._opener.open(request, timeout=self.settings.timeout) as response:
                content = self._read(response)
        except urllib.error.HTTPError as error:
            raise self._refusal(error) from None
        except TimeoutError:
            raise _Failure(message=f"no reply within judge.timeout = {self.settings.timeout:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            if isinstance(getattr(error, "reason", None), TimeoutError):
                raise _Failure(message=f"no connection within judge.timeout = {self.settings.timeout:g} s") from None
            raise _Failure(message=f"{self._url}: {getattr(error, 'reason', None) or error!r}") from None
        return self._understood(content, len(data))

    def _read(self, response: Any) -> bytes:
        """Read the whole reply. The timeout limits the whole: a server that sends slowly is late, too."""
        end, parts = time.monotonic() + self.settings.timeout, [b""]
        while part := response.read1(65536):
            parts.append(part)
            if time.monotonic() > end:
                raise TimeoutError
            if sum(map(len, parts)) > LONGEST_REPLY:
                raise _Failure(message=f"a reply of more than {LONGEST_REPLY} bytes", passing=False)
        return b"".join(parts)

    def _understood(self, content: bytes, sent: int) -> Reply:
        """The reply in the body. If the endpoint does not count tokens, four bytes count as one token."""
        try:
            reply = json.loads(content)
            choice = reply["choices"][0]
            text = _spoken(choice["message"])
            usage = reply.get("usage") or {}
        except (ValueError, LookupError, TypeError, AttributeError):
            shown = self.without_key(content.decode(errors="replace"))[:80]
            raise _Failure(message=f"{self._url} returned no chat completion but {shown!r}") from None
        tokens = usage.get("total_tokens")
        tokens = tokens if isinstance(tokens, int) else (sent + len(text.encode())) // 4
        self.budget.add_tokens(tokens)
        return Reply(text=text, tokens=tokens, finish_reason=str(choice.get("finish_reason") or ""))

    def _refusal(self, error: urllib.error.HTTPError) -> _Failure:
        status = error.code
        try:
            said = self.without_key(" ".join(self._read(error.fp).decode(errors="replace").split()))
        except (OSError, http.client.HTTPException, _Failure):  # the status says enough
            said = ""
        message = f"{self._url} returned {status}" + (f": {said[:200]}" if said else "")
        if status in (401, 403):
            message += f"; judge.api_key_env = {self.settings.api_key_env or 'null'}"
        return _Failure(
            message=message,
            passing=status in _PASSING or status >= 500,
            for_all=status in _REFUSED,
            wait=_retry_after(error.headers.get("Retry-After")),
        )


class _Shift:
    """The threads that work through one call's conversations."""

    def __init__(self, endpoint: Endpoint, conversations: Sequence[Conversation]) -> None:
        self.endpoint, self.conversations = endpoint, conversations
        self.over, self.refused = threading.Event(), list[str]()
        self.waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[tuple[int, Reply] | None] = queue.SimpleQueue()
        """Replies with their places. None means that nobody waits any more."""
        for place in range(len(conversations)):
            self.waiting.put(place)

    def work(self, keep: Callable[[int, Reply], None]) -> dict[int, Reply]:
        """Return the replies that arrive before the deadline, by place."""
        settings, found = self.endpoint.settings, dict[int, Reply]()
        for _ in range(min(settings.concurrency, len(self.conversations))):
            threading.Thread(target=self._serve, name="judge", daemon=True).start()
        end = time.monotonic() + settings.deadline
        while len(found) < len(self.conversations):
            try:
                arrived = self.done.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                break
            if arrived is None:
                break
            place, reply = arrived
            found[place] = reply
            keep(place, reply)
        return found

    def abandon(self) -> None:
        self.over.set()
        self.done.put(None)

    def _serve(self) -> None:
        slots, more = self.endpoint.slots, True
        while more:
            with slots:
                more = not self.over.is_set() and self._serve_one()

    def _serve_one(self) -> bool:
        """Answer one question. False if there is none left."""
        try:
            place = self.waiting.get_nowait()
        except queue.Empty:
            return False
        try:
            reply = self.endpoint.ask(self.conversations[place], self.over, self.refused)
        except Exception as error:  # a thread that dies must not leave its question open until the deadline
            reply = Reply(error=f"{type(error).__name__}: {error}")
        said = {name: self.endpoint.without_key(getattr(reply, name)) for name in ("text", "error", "finish_reason")}
        self.done.put((place, replace(reply, **said)))
        return True


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def seed_of(conversation: Conversation) -> int:
    """The sampling seed of a question: a pure function of its messages and of the number of the judgement."""
    text = json.dumps([conversation.messages, conversation.sample])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def _spoken(message: dict[str, Any]) -> str:
    """The text of a message: its content, as text or in parts, else its refusal. Reasoning is no part of it.

    >>> _spoken({"content": [{"type": "thinking", "thinking": []}, {"type": "text", "text": "Score: 4"}]})
    'Score: 4'
    >>> _spoken({"content": None, "refusal": "I cannot help."}), _spoken({"content": None})
    ('I cannot help.', '')
    """
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if part.get("type", "text") == "text")
    return str(content or message.get("refusal") or "")


def _key(name: str | None) -> str:
    if name is None:
        return ""
    key = os.environ.get(name, "").strip()
    if not key:
        raise ConfigError(
            given=f"judge.api_key_env = {name}, but the environment has no such variable",
            allowed="the name of an environment variable that holds the key",
            fix=f"Set it before the run: export {name}=...",
        )
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError(
            given=f"judge.api_key_env = {name}, but the variable's value cannot be sent in a header",
            allowed="a key of printable ASCII characters without spaces",
            fix=f"Copy the key again: export {name}=...",
        )
    return key


def _pause(attempt: int) -> float:
    """Seconds before a retry: exponential, times a random factor from 0.5 to 1 so that retries do not coincide."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt) * random.uniform(0.5, 1.0)


def _retry_after(text: str | None) -> float | None:
    """Seconds to wait, from the number or date in the header.

    >>> _retry_after("2"), _retry_after(None), _retry_after("soon")
    (2.0, None, None)
    """
    if not text:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        try:
            return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
        except ValueError:
            return None
