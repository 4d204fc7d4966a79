"""Too little memory is told with the settings that need less; other errors pass."""

from __future__ import annotations

import pytest
import torch

from posttrain.errors import DoesNotFit
from posttrain.train.memory import within_memory

FIX = r"(?s)train.tokens_per_microbatch.*train.gradient_checkpointing = true.*lora.*sampling.max_batch_rows"


def test_a_tensor_that_no_machine_can_hold_does_not_fit():
    with pytest.raises(DoesNotFit, match=FIX) as caught, within_memory():
        torch.empty(2**60)
    assert caught.value.exit_code == 3
    assert "can't allocate memory" in caught.value.given


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried to ...\nmore")])
def test_python_and_cuda_say_it_in_their_own_ways(error):
    with pytest.raises(DoesNotFit, match=FIX), within_memory():
        raise error


def test_another_error_is_left_as_it_is():
    with pytest.raises(RuntimeError, match="shapes differ"), within_memory():
        raise RuntimeError("shapes differ")
