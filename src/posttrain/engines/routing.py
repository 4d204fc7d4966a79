"""How often a mixture of experts sends a token to other experts when it is sampled than when it is trained on.

Rounding alone does that where two experts are about as good: the sampler decodes token by token, the trainer scores
packed rows. A token that other experts computed has another log-probability, however small the rounding was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from posttrain.engines.decoding import base_model
from posttrain.models.transformers_private import router_kinds
from posttrain.types import Mean, Metrics


def routers(model: nn.Module) -> list[nn.Module]:
    """The modules that choose experts, one per layer that has some; none in a dense model."""
    kinds = router_kinds(base_model(model))
    return [module for module in model.modules() if isinstance(module, kinds)]


@contextmanager
def chosen_experts(model: nn.Module) -> Iterator[Callable[[], list[Tensor]]]:
    """Watches the routers inside of the `with` block; then gives, per router, `[tokens, k]` sorted numbers of experts.

    A router that does not say what it chose is left out.
    """
    watched = routers(model)
    seen: list[list[Tensor]] = [[] for _ in watched]

    def keeper(kept: list[Tensor]) -> Callable[[nn.Module, Any, Any], None]:
        def keep(module: nn.Module, inputs: Any, output: Any) -> None:
            parts = output if isinstance(output, tuple) else (output,)
            numbers = [part for part in parts if isinstance(part, Tensor) and part.dtype == torch.long]
            kept.extend(number.flatten(0, -2).sort(dim=-1).values for number in numbers[:1])

        return keep

    handles = [router.register_forward_hook(keeper(kept)) for router, kept in zip(watched, seen, strict=True)]
    try:
        yield lambda: [torch.cat(kept) for kept in seen if kept]
    finally:
        for handle in handles:
            handle.remove()


def routing_difference(
    trained: nn.Module,
    score: Callable[[Sequence[int], Sequence[int]], object],
    routes: Callable[[Sequence[int], Sequence[int]], list[Tensor]],
    prompt_ids: Sequence[Sequence[int]],
    completion_ids: Sequence[Sequence[int]],
) -> Metrics:
    """`mismatch/routing_difference`: share of (token, layer) whose set of experts differs between the two sides.

    `score` puts a row through the trained model, `routes` says which experts the sampler's choose for it. Row by row,
    so that the tokens of both sides stand in the same order. Both have scored before: a model's first packed pass also
    finds out how it is run.
    """
    differing, total = 0, 0
    for prompt, completion in zip(prompt_ids, completion_ids, strict=True):
        with chosen_experts(trained) as chosen:
            score(prompt, completion)
        theirs = routes(prompt, completion)
        for ours_nk, theirs_nk in zip(chosen() if theirs else [], theirs, strict=True):
            assert ours_nk.shape == theirs_nk.shape, "both sides put the same tokens through each layer"
            differing += int((ours_nk != theirs_nk.to(ours_nk.device)).any(dim=-1).sum())
            total += len(ours_nk)
    return {"mismatch/routing_difference": Mean(differing, total)} if total else {}
