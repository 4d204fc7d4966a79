"""Limits on what data and chat templates may take: a text too long to tokenise, a template that never ends.

A chat template is a program that came with a model. Before it is used for a run it is tried in a child process with
little time and memory, which the system ends whatever the template does. Later each rendering has a limit of time.
"""

from __future__ import annotations

import functools
import os
import resource
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from posttrain.data.dropped import Unusable
from posttrain.errors import DataError

SECONDS = 10
"""Seconds of computation for one conversation under a chat template."""
BYTES = 1 << 30
"""Bytes of memory for one conversation under a chat template."""
MOST_CHARACTERS = 4_000_000
"""Most characters of one row if the model's context sets no limit: some seconds and half a gigabyte to tokenise."""


def texts_in(value: Any) -> Iterator[str]:
    """All texts in messages, tool calls and whatever else data is made of."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from texts_in(one)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for one in value:
            yield from texts_in(one)


def refuse_long(values: Any, max_length: int, tokenizer: Any, what: str = "longer") -> None:
    """Raise `Unusable` for texts of so many characters that they cannot be `max_length` tokens, before they are
    tokenised."""
    characters = sum(map(len, texts_in(values)))
    if characters > max_length and characters > max_length * longest_token(tokenizer):
        raise Unusable(f"{what} than {max_length} tokens")
    if characters > MOST_CHARACTERS:
        raise Unusable(f"more than {MOST_CHARACTERS:,} characters")


@functools.lru_cache(maxsize=4)
def longest_token(tokenizer: Any) -> int:
    """Characters of the longest token; a tokenizer without a vocabulary makes one of each character."""
    vocabulary: Iterable[str] = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else ()
    return max(map(len, vocabulary), default=1)


def refuse_half_characters(value: Any) -> None:
    r"""Raise `Unusable` for text that JSON can spell ("\ud800") and that no file, screen or tokenizer takes."""
    if isinstance(value, str):
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise Unusable("text with half a character (a lone surrogate)") from None
    elif isinstance(value, Mapping):
        for name, one in value.items():
            refuse_half_characters(name)
            refuse_half_characters(one)
    elif isinstance(value, list | tuple):
        for one in value:
            refuse_half_characters(one)


# --- chat templates ---------------------------------------------------------------------------------------------------


class _TooSlow(BaseException):
    """Not an Exception: a template cannot catch it, nor can what calls it."""


def try_template(render: Callable[[], object]) -> None:
    """Call `render` in a child process with limits. Raises `DataError` where it exceeds them; whatever else it raises
    is found again when rows are rendered."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads, which the child does not need
        child = os.fork()
    if child == 0:
        code = 0
        try:
            _limit_this_process()
            render()
        except (MemoryError, DataError):
            code = 1
        except BaseException:  # of the template, or of this platform
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
    if killed or (os.WIFEXITED(status) and os.WEXITSTATUS(status) == 1):
        raise _beyond()


def _limit_this_process() -> None:
    for what in (signal.SIGINT, signal.SIGTERM):
        signal.signal(what, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    with suppress(OSError, ValueError):  # where the system knows no such limit
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


@contextmanager
def limited_time() -> Iterator[None]:
    """Raises `DataError` after `SECONDS` of computing in the main thread, or where memory ends; a suspended process is
    not late."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise _TooSlow

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    except (_TooSlow, MemoryError):
        raise _beyond() from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _beyond() -> DataError:
    return DataError(
        given=f"the chat template takes more than {SECONDS} s of computing, or {BYTES >> 30} GB of memory, for one "
        "conversation",
        allowed="a template that renders a conversation quickly",
        fix="Name another template in model.chat_template, or fix the loop in this one.",
    )
