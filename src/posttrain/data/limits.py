"""Limits on the time and memory of data and chat templates, for texts too long to tokenise and templates that loop.

A chat template is a program that comes with a model. Before a run uses it, a child process with limited time and memory
tries it, and the system kills that process if necessary. Later, each rendering has a time limit.
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
"""Limit on the CPU time to render one conversation with a chat template, in seconds."""
BYTES = 1 << 30
"""Limit on the memory to render one conversation with a chat template, in bytes."""
MOST_CHARACTERS = 4_000_000
"""Largest number of characters in one row if the model's context sets no lower limit. Tokenising as many takes some
seconds and half a gigabyte."""


def texts_in(value: Any) -> Iterator[str]:
    """All texts inside a value, such as messages or tool calls."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from texts_in(one)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for one in value:
            yield from texts_in(one)


def refuse_long(values: Any, max_length: int, tokenizer: Any, what: str = "longer") -> None:
    """Raise `Unusable` for texts with so many characters that they must exceed `max_length` tokens. This saves
    tokenising them."""
    characters = sum(map(len, texts_in(values)))
    if characters > max_length and characters > max_length * longest_token(tokenizer):
        raise Unusable(f"{what} than {max_length} tokens")
    if characters > MOST_CHARACTERS:
        raise Unusable(f"more than {MOST_CHARACTERS:,} characters")


@functools.lru_cache(maxsize=4)
def longest_token(tokenizer: Any) -> int:
    """Length of the longest token, in characters; 1 for a tokenizer without a vocabulary (`Characters`)."""
    vocabulary: Iterable[str] = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else ()
    return max(map(len, vocabulary), default=1)


def refuse_half_characters(value: Any) -> None:
    r"""Raise `Unusable` for lone surrogates ("\ud800"): JSON can hold them, but no file, terminal or tokenizer can."""
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
    """Raised when a template exceeds its time. Not an Exception, so that neither the template nor its caller catches
    it."""


def try_template(render: Callable[[], object]) -> None:
    """Call `render` in a child process with limits. Raises `DataError` if it exceeds them. Other errors are ignored
    here, because they occur again when rows are rendered."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about forking with threads; the child needs none
        child = os.fork()
    if child == 0:
        code = 0
        try:
            _limit_this_process()
            render()
        except (MemoryError, DataError):
            code = 1
        except BaseException:  # raised by the template or by this platform
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
    with suppress(OSError, ValueError):  # the system may not have such a limit
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


@contextmanager
def limited_time() -> Iterator[None]:
    """Raise `DataError` after `SECONDS` of CPU time in the main thread, or when memory runs out. The time of a
    suspended process does not count."""
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
