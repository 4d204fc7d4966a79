"""Handling of out-of-memory errors: an update is retried with smaller micro-batches, anything else is a clear error."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from posttrain.errors import DoesNotFit
from posttrain.models.packing import needed_tokens
from posttrain.ranks.agreement import Ranks
from posttrain.types import Batch

T = TypeVar("T")
Plan = Callable[[int], Sequence[Batch]]
"""Maximum tokens per micro-batch -> the micro-batches."""


class Room:
    """The number of tokens per micro-batch: `train.tokens_per_microbatch`, halved when memory runs out.

    A gradient does not depend on how its rows are split, so a retry with smaller parts gives the same result up to the
    order of its sums. With several ranks there is no retry: if one rank runs out of memory, the job ends.
    """

    def __init__(self, tokens: int, ranks: Ranks, say: Callable[[str], None] = lambda sentence: None) -> None:
        self.tokens, self.ranks, self.say = tokens, ranks, say

    def attempt(self, plan: Plan, compute: Callable[[Sequence[Batch]], T], undo: Callable[[], object]) -> T:
        """The result of `compute` for the micro-batches of `plan`. It retries with smaller ones when memory runs out.

        `undo` removes what a failed attempt left behind. Raises DoesNotFit if single rows are too large."""
        if self.ranks.size > 1:  # if one rank stops in the middle of a pass, the others wait there: no retry
            return compute(plan(self.tokens))
        while True:
            micros, dice = plan(self.tokens), random_state()
            found, reason = tried(partial(compute, micros))
            if found is not None:
                return found[0]
            undo()
            free_memory()
            set_random_state(dice)
            self._halve(plan, micros, reason)

    def _halve(self, plan: Plan, micros: Sequence[Batch], reason: str) -> None:
        """Halve the tokens per micro-batch until the number of micro-batches changes."""
        before = self.tokens
        while self.tokens > 1:
            self.tokens //= 2
            if len(plan(self.tokens)) != len(micros):
                self.say(
                    f"out of memory with micro-batches of {before} tokens ({reason}): this step is computed again "
                    f"with train.tokens_per_microbatch = {self.tokens}, and later steps use it, too; the setting "
                    "changes no result"
                )
                return
        tokens, rows = max(((tokens_of(micro), len(micro.completion_mask_BT)) for micro in micros), default=(0, 0))
        one = "one row" if rows == 1 else f"{rows} rows that belong together"
        raise does_not_fit(f"{one} of {tokens} tokens: {reason}")

    def state(self) -> int:
        return self.tokens

    def load_state(self, tokens: int) -> None:
        """Restore the saved size: a resumed run splits rows like an uninterrupted one, so sums keep their order."""
        self.tokens = min(self.tokens, tokens)


def tokens_of(micro: Batch) -> int:
    return int(needed_tokens(micro.completion_mask_BT).sum())


def tried(compute: Callable[[], T]) -> tuple[tuple[T] | None, str]:
    """The result, or the reason why memory ran out. The error is dropped: its frames would hold memory to be freed."""
    try:
        return (compute(),), ""
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        return None, reason_of(error)


def free_memory() -> None:
    """Free unreferenced memory, on the device as well."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def random_state() -> tuple[Tensor, list[Tensor]]:
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


def set_random_state(state: tuple[Tensor, list[Tensor]]) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])


@contextmanager
def within_memory() -> Iterator[None]:
    """Turn any out-of-memory error into `DoesNotFit`, which names the settings that need less memory.

    >>> with within_memory():
    ...     torch.empty(2**60)
    Traceback (most recent call last):
    posttrain.errors.DoesNotFit: ...
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        raise does_not_fit(reason_of(error)) from error


def does_not_fit(reason: str) -> DoesNotFit:
    return DoesNotFit(
        given=f"out of memory ({reason})",
        allowed="as much memory as the machine has",
        fix="Training needs less memory with a lower train.tokens_per_microbatch or train.logprob_chunk_tokens, with "
        "train.gradient_checkpointing = true, or with adapters (lora = {}). Sampling needs less with a lower "
        "sampling.max_batch_rows.",
    )


def reason_of(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


OUT_OF_MEMORY = re.compile(
    r"can't allocate memory|bad_alloc|could not (create|execute) a primitive(?! descriptor)"
    r"|error: out of memory|CU\w+_STATUS_ALLOC_FAILED"
)
"""Allocators, C++, oneDNN and the CUDA libraries raise plain RuntimeErrors that only their text identifies."""


def _is_out_of_memory(error: MemoryError | RuntimeError) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or OUT_OF_MEMORY.search(str(error)) is not None
