"""Running out of memory, said in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from posttrain.errors import DoesNotFit


@contextmanager
def within_memory() -> Iterator[None]:
    """Whatever a run asks for beyond what the machine has becomes `DoesNotFit`, with the settings that need less.

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
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise DoesNotFit(
            given=f"the memory does not suffice ({reason})",
            allowed="what the machine has",
            fix="Training needs less with a lower train.tokens_per_microbatch or train.logprob_chunk_tokens, with "
            "train.gradient_checkpointing = true, or with adapters (lora = {}); sampling with a lower "
            "sampling.max_batch_rows.",
        ) from error


def _is_out_of_memory(error: MemoryError | RuntimeError) -> bool:
    """The allocator for the CPU raises a plain RuntimeError; a text is all that tells it from others."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
