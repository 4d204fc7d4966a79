"""What a judge said once is kept on disk by the content of the question, and shared by runs.

    <folder>/3f/3f9c...json     {"text": ..., "tokens": ...}

The name is a hash of who answers (endpoint and model, or the weights), the messages, the sampling settings and the
number of the judgement. A file is written aside and renamed, so that a reader meets a whole one or none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from posttrain.errors import DoesNotFit
from posttrain.files import write_atomically
from posttrain.rewards.judge.records import Backend, Conversation, Reply


class Cached:
    """A backend that is asked only what is not on disk yet."""

    def __init__(self, backend: Backend, folder: Path | None, sampling: Mapping[str, Any]) -> None:
        """`folder` None keeps nothing; `sampling` is whatever else decides what is answered."""
        self.backend, self.folder, self.sampling = backend, folder, dict(sampling)

    def answer(self, conversations: Sequence[Conversation]) -> list[Reply]:
        """One reply per conversation, in order; the same question is asked once. Failures are not kept."""
        identity = self.backend.identity() if self.folder is not None else None
        keys = [self._key(identity or "", conversation) for conversation in conversations]
        kept = {} if identity is None else {key: reply for key in dict.fromkeys(keys) if (reply := self._read(key))}
        places = {key: place for place, key in reversed(list(enumerate(keys))) if key not in kept}
        open_keys = sorted(places, key=places.__getitem__)

        def keep(place: int, reply: Reply) -> None:
            if identity is not None and not reply.error:
                self._write(open_keys[place], reply)

        asked = self.backend.answer([conversations[places[key]] for key in open_keys], keep) if open_keys else []
        found = dict(zip(open_keys, asked, strict=True))
        return [
            kept[key] if key in kept else found[key] if places[key] == place else _again(found[key])
            for place, key in enumerate(keys)
        ]

    def _key(self, identity: str, conversation: Conversation) -> str:
        content = json.dumps([identity, conversation.messages, conversation.sample, self.sampling], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / key[:2] / f"{key}.json"

    def _read(self, key: str) -> Reply | None:
        try:
            return Reply(text=json.loads(self._path(key).read_bytes())["text"], cached=True)
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def _write(self, key: str, reply: Reply) -> None:
        """Best effort: a cache that cannot be written costs a question, never the run."""
        with suppress(OSError, DoesNotFit):
            write_atomically(self._path(key), json.dumps({"text": reply.text, "tokens": reply.tokens}))


def _again(reply: Reply) -> Reply:
    """The reply to a question that was asked a second time within one call."""
    return reply if reply.error else Reply(text=reply.text, cached=True)
