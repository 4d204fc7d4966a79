"""Delivery of weights to a sampler, and the proof that it decodes with the trained ones. If it fails, the run stops.

1. **Version**: the sampler reports the version that was delivered.
2. **Content**: its receipt has each tensor that it decodes with. Every parameter and buffer of the trained model, cast
   to the sampler's precision, must equal it bit by bit. An engine in another process sends digests of its tensors,
   which must be those of the trained ones. So a stale copy is found however small the learning rate was.
3. **Path**: a sampler in this process also checks which memory decoding reads (reads.py): the compared tensors are
   those in use, and not others that are kept next to them.
4. **Probe**: the trainer's forward pass and the sampler's decoding give a fixed text the same log-probabilities, within
   a tolerance for rounding. Alone, it would miss changes below the tolerance, which are the usual ones.

A step that changed nothing (learning rate 0, no signal) passes, because the old weights are then the trained ones.

For a mixture of experts, it also measures how often a token goes to other experts in sampling than in training.
Rounding alone causes that if two experts score about equally: the sampler decodes token by token, the trainer scores
packed rows. A token from other experts has another log-probability, however small the rounding was.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from posttrain.engines.decoding import base_model
from posttrain.engines.sampler import Digest, Receipt, Sampler
from posttrain.engines.weights import check_names, dense, merged_tensors, named_tensors, tensor_names
from posttrain.errors import NonFiniteError, PublishError
from posttrain.models.footprint import PROBE_ROWS, PROBE_SCORED_TOKENS, PROBE_TOKENS
from posttrain.models.modes import evaluating
from posttrain.models.transformers_private import router_kinds
from posttrain.types import Max, Mean, Metrics, Min

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_TOLERANCES = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.5, torch.bfloat16: 3.0}


class ScoreCompletions(Protocol):
    """The trainer's side of the probe: the forward pass of training, with the signature of `Sampler.score`."""

    def __call__(
        self, prompt_ids: Sequence[Sequence[int]], completion_ids: Sequence[Sequence[int]], *, temperature: float
    ) -> Sequence[Sequence[float]]: ...


@dataclass(frozen=True, kw_only=True)
class DeliveryProof:
    """The fixed text that both sides score, and the allowed difference. `from_prompts` makes a good one."""

    prompt_ids: tuple[tuple[int, ...], ...]
    completion_ids: tuple[tuple[int, ...], ...]
    tolerance: float
    """Nats by which a log-probability may differ between trainer and sampler, at temperature 1: see `tolerance_for`."""
    temperature: float = 1.0

    @staticmethod
    def from_prompts(
        prompt_ids: Sequence[Sequence[int]], *, tolerance: float, temperature: float = 1.0, rows: int = PROBE_ROWS
    ) -> DeliveryProof:
        """Return probe rows from the ends of the first prompts: `PROBE_TOKENS` each; the last few of them are scored.

        A pure function of the prompts: nothing is sampled, and a resumed run has the same probe. A prompt that fits the
        context window also fits as a probe, except a prompt of one or two tokens, whose probe is two tokens longer.
        """
        tails = [tuple(ids[-PROBE_TOKENS:]) for ids in prompt_ids[:rows]]
        scored = [max(2, min(PROBE_SCORED_TOKENS, len(tail) // 2)) for tail in tails]  # the second needs decoding
        return DeliveryProof(
            prompt_ids=tuple(tail[:-n] or tail for tail, n in zip(tails, scored, strict=True)),
            completion_ids=tuple((tail * 2)[-n:] for tail, n in zip(tails, scored, strict=True)),
            tolerance=tolerance,
            temperature=temperature,
        )

    def __post_init__(self) -> None:
        if not self.prompt_ids or not all(map(len, (*self.prompt_ids, *self.completion_ids))):
            raise ValueError("a delivery proof needs at least one probe, with tokens in its prompt and its completion")

    def check(
        self, policy_logprobs: ScoreCompletions, policy: nn.Module, sampler: Sampler, receipt: Receipt, version: int
    ) -> Metrics:
        """Raise PublishError, naming what differs, unless the sampler decodes with the weights of `policy`.

        Metrics: `publish/tensors_compared`, `publish/probe_max_difference` (nats), and for a mixture of experts
        `mismatch/routing_difference`: the share of the probe's (token, layer) pairs with different experts.
        """
        if {sampler.version, receipt.version} != {version}:
            stale = next(one for one in (sampler.version, receipt.version) if one != version)
            raise PublishError(
                given=f"the sampler runs policy version {stale}, but should run {version}",
                fix="The new weights were not loaded: call Sampler.deliver(tensors, version).",
            )
        with torch.no_grad():
            compared = check_receipt(receipt, _tensors_as_in(policy, receipt))
            decoded = sampler.probe(self.prompt_ids, self.completion_ids, temperature=self.temperature)
            with evaluating(policy):
                trained = policy_logprobs(self.prompt_ids, self.completion_ids, temperature=self.temperature)
                difference = self.compare(trained, decoded, version)
                routing = self._measure_routing(policy_logprobs, policy, sampler)
        return {
            "publish/tensors_compared": Min(float(compared)),
            "publish/probe_max_difference": Max(difference),
            **routing,
        }

    def compare(self, trained: Sequence[Sequence[float]], decoded: Sequence[Sequence[float]], version: int) -> float:
        """Return the largest difference between both sides' log-probabilities of the probe. Raises if it exceeds the
        tolerance or is not finite."""
        _require_finite(trained, version)
        worst, row, t, ours, theirs = max(_differences(trained, decoded))
        allowed = self.tolerance / min(self.temperature or 1.0, 1.0)  # rounding of logits grows as they are divided
        if worst > allowed:
            raise PublishError(
                given=f"token {t} of probe {row} has log-probability {ours:.6g} in the trainer and {theirs:.6g} "
                f"in the sampler, a difference of {worst:.3g}",
                allowed=f"at most {allowed:.3g} (guards.publish_tolerance, divided by a temperature below 1)",
                fix="The tensors agree, so the computation differs: something computed from older weights, another "
                "precision, attention or temperature.",
            )
        return worst

    def _measure_routing(self, policy_logprobs: ScoreCompletions, policy: nn.Module, sampler: Sampler) -> Metrics:
        if not routers(policy):
            return {}

        def trained(prompt: Sequence[int], completion: Sequence[int]) -> object:
            return policy_logprobs([prompt], [completion], temperature=self.temperature)

        return routing_difference(policy, trained, sampler.routes, self.prompt_ids, self.completion_ids)


def deliver(policy: nn.Module, sampler: Sampler, version: int) -> Receipt:
    """Deliver the weights of `policy` to the sampler, with adapters merged if the sampler has its own tensors."""
    return sampler.deliver(merged_tensors(policy) if sampler.owns_weights else named_tensors(policy), version)


def _require_finite(trained: Sequence[Sequence[float]], version: int) -> None:
    for row, logprobs_T in enumerate(trained):
        for t, logprob in enumerate(logprobs_T):
            if not math.isfinite(logprob):
                raise NonFiniteError(
                    given=f"policy version {version}: the log-probability of token {t} of probe {row} is {logprob}",
                    allowed="finite numbers",
                    fix="The last update made the weights too large. Lower train.learning_rate, or set "
                    "model.precision = float32.",
                )


def tolerance_for(*dtypes: torch.dtype) -> float:
    """Return the tolerance of the probe for computation in these precisions: that of the coarsest one.

    Largest differences measured at temperature 1 on correct copies (packed forward against decoding; nine models, three
    of them trained, 32 rows each): 2e-5 in float32; with a bfloat16 copy 0.5, and 1.8 in a random mixture of experts,
    where rounding changes the routing. So in bfloat16 the probe finds gross errors only; content is compared exactly.
    """
    return max(_TOLERANCES[dtype] for dtype in dtypes)


def check_receipt(receipt: Receipt, trained: Iterable[tuple[str, Tensor]], *, whole: bool = True) -> int:
    """Return how many tensors were compared. Raises PublishError if one differs or has no counterpart.

    Not `whole`: the sampler may have others in addition."""
    names, differing = set[str](), list[str]()
    for name, tensor in trained:
        names.add(name)
        held = receipt.tensors.get(name)
        if name not in receipt.in_place and held is not None and not _same_bits(tensor, held):
            differing.append(name)
    check_names(names, receipt.names if whole else names & receipt.names)
    if differing:
        raise PublishError(
            given=f"{differing[0]} differs between the trained model and the sampler, "
            f"and so do {len(differing) - 1} of the other {len(names) - 1} tensors",
            allowed="equal tensors",
            fix="The sampler decodes with stale or incomplete weights: deliver has to load every tensor.",
        )
    return len(names)


@torch.no_grad()
def _same_bits(trained: Tensor, held: Tensor) -> bool:
    """Whether the sampler's tensor has the content of the trained one, cast to its precision."""
    ours, theirs = (dense(tensor.detach()) for tensor in (trained, held))
    ours = ours.to(theirs.device, theirs.dtype)
    if ours.shape != theirs.shape:
        return False
    if theirs.is_complex():
        ours, theirs = (torch.view_as_real(tensor.resolve_conj().resolve_neg()) for tensor in (ours, theirs))
    bits = _BITS[theirs.element_size()]  # as whole numbers, because NaN does not equal itself
    return torch.equal(ours.view(bits), theirs.view(bits))


@torch.no_grad()
def digest(tensor: Tensor, dtype: torch.dtype | None = None) -> Digest:
    """Return the digest of the content, cast to `dtype` (default: no cast). Device and layout do not matter."""
    plain = dense(tensor.detach()).to(dtype or tensor.dtype).cpu().contiguous()
    content = hashlib.sha256(str(list(plain.shape)).encode())
    content.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return Digest(plain.dtype, content.hexdigest())


def digests_of(receipt: Receipt) -> dict[str, Digest]:
    """Return what an engine sends of its receipt to a trainer in another process."""
    return {name: digest(tensor) for name, tensor in receipt.tensors.items()}


def _tensors_as_in(policy: nn.Module, receipt: Receipt) -> Iterator[tuple[str, Tensor]]:
    """Return the policy's tensors under the sampler's names: with adapters if it has them, else merged."""
    adapted = tensor_names(policy)
    return named_tensors(policy) if receipt.names <= adapted else merged_tensors(policy)


def _differences(
    trained: Sequence[Sequence[float]], decoded: Sequence[Sequence[float]]
) -> Iterator[tuple[float, int, int, float, float]]:
    """Yield (difference, row, token, trainer's, sampler's) for every token; NaN counts as an infinite difference."""
    for row, (ours_T, theirs_T) in enumerate(zip(trained, decoded, strict=True)):
        for t, (ours, theirs) in enumerate(zip(ours_T, theirs_T, strict=True)):
            difference = 0.0 if ours == theirs else abs(ours - theirs)
            yield (math.inf if math.isnan(difference) else difference), row, t, ours, theirs


def routers(model: nn.Module) -> list[nn.Module]:
    """Return the modules that choose experts, one per layer that has some; empty for a dense model."""
    kinds = router_kinds(base_model(model))
    return [module for module in model.modules() if isinstance(module, kinds)]


@contextmanager
def chosen_experts(model: nn.Module) -> Iterator[Callable[[], list[Tensor]]]:
    """Watch the routers inside the `with` block; then return, per router, `[tokens, k]` sorted indices of experts.

    A router whose output does not contain its choice is left out.
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
    """Return `mismatch/routing_difference`: share of (token, layer) pairs whose experts differ between both sides.

    `score` puts a row through the trained model; `routes` returns the experts of the sampler's model for it. Rows go
    one by one, so that the tokens of both sides have the same order. Both must have scored before, because a model's
    first packed pass also tries out how to run it.
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
