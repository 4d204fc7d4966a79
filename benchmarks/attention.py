"""Attention in training: the compiled kernel compared with PyTorch's, on the packed rows of a GRPO micro-batch.

    python -m benchmarks.attention

Times are CPU times of one thread, which other programs do not affect. They include forward and backward pass, and the
copies into and out of grids that PyTorch's attention needs. Each is the lowest of several turns.
"""

from __future__ import annotations

import random
import time

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.masking_utils import create_causal_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from posttrain.cpu.kernels import Kernels, kernels, training_by, why_none
from posttrain.models.packed_attention import packed_rows
from posttrain.models.packing import Packed, pack_whole
from posttrain.types import Tokens

HEADS = [(6, 3, 32), (12, 12, 64), (8, 2, 64), (16, 8, 128)]
"""Number of query heads, number of key heads, and width of a head."""
SHAPES = {
    "4 prompts of 75, 8 answers of 45 each": ([75] * 4, 45),
    "2 prompts of 384, 8 answers of 45 each": ([384] * 2, 45),
    "4 rows of 1,024": ([1024] * 4, 0),
}
TURNS = 7


def packed(prompts: list[int], answer: int) -> Packed:
    """Packed rows of prompts and answers. The lengths of answers are exponential with mean `answer`; 0: no answers."""
    dice, rows = random.Random(0), []
    for number, length in enumerate(prompts):
        prompt = [number] * length
        lengths = [1 + int(dice.expovariate(1 / answer)) for _ in range(8)] if answer else [0]
        rows += [prompt + [100 + k] * extra for k, extra in enumerate(lengths)]
    ids_BT = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    return pack_whole(Tokens(input_ids_BT=ids_BT, lengths_B=torch.tensor([len(row) for row in rows])))


def seconds(rows: Packed, heads: tuple[int, int, int], dtype: torch.dtype, by: Kernels | None) -> float:
    queries, keys, width = heads
    layer, noise = nn.Module(), torch.Generator().manual_seed(0)
    layer.num_key_value_groups, layer.is_causal = queries // keys, True  # type: ignore[assignment]
    shapes = [(1, rows.num_tokens, number, width) for number in (queries, keys, keys)]
    tensors = [torch.randn(shape, generator=noise).to(dtype).transpose(1, 2).requires_grad_() for shape in shapes]
    config = LlamaConfig(attn_implementation="packed_sdpa", num_hidden_layers=1)
    positions_1L, found = rows.position_ids_L[None], list[float]()
    with training_by(by), packed_rows(rows.segments, torch.device("cpu")):
        mask = create_causal_mask(config, tensors[0].detach()[:, 0], None, None, position_ids=positions_1L)
        gradient: Tensor | None = None
        for _ in range(TURNS):
            begin = time.process_time()
            out = ALL_ATTENTION_FUNCTIONS["packed_sdpa"](layer, *tensors, mask)[0]
            gradient = torch.ones_like(out) if gradient is None else gradient
            torch.autograd.grad(out, tensors, gradient)
            found.append(time.process_time() - begin)
    return min(found)


def main() -> None:
    compiled = kernels()
    if compiled is None:
        raise SystemExit(f"there are no kernels here: {why_none()}")
    torch.set_num_threads(1)
    for name, (prompts, answer) in SHAPES.items():
        rows = packed(prompts, answer)
        print(f"{name}: {rows.num_tokens} packed tokens")
        for heads in HEADS:
            for dtype in (torch.float32, torch.bfloat16):
                ours, theirs = (1000 * seconds(rows, heads, dtype, by) for by in (compiled, None))
                line = f"kernel {ours:6.1f} ms, PyTorch {theirs:6.1f} ms: {theirs / ours:.1f} times"
                print(f"  {heads[0]:2} heads, {heads[1]:2} of keys, width {heads[2]:3}, {str(dtype)[6:]:8}  {line}")


if __name__ == "__main__":
    main()
