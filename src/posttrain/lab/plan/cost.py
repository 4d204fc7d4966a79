"""Floating-point operations and bytes of everything a step does, and the seconds and dollars that they come to.

    forward, per token    2 N_active + 2 h (d_k + d_v) c per layer      c: tokens that it attends to
    head                  2 D V, for tokens that are scored alone
    backward              2 x forward of the linear layers (1 x where the weights are frozen), 2.5 x of attention
    computation           max(operations / rate, bytes / bandwidth) + layer calls x what each of them costs at least
    seconds               max(computation, what ranks tell each other meanwhile) + what they wait for (collectives.py)

N_active are the weights that one token meets: of a mixture of experts those of the experts chosen for it. The fused
backward of attention computes the scores again: five products for the two of the forward pass (arXiv:2205.14135).

D width of the hidden state, V vocabulary, h heads, d_k and d_v the widths of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

from posttrain.functional.linear_logprobs import KEPT_BYTES
from posttrain.lab.plan.architecture import Architecture
from posttrain.lab.plan.collectives import Collective
from posttrain.lab.plan.hardware import Hardware
from posttrain.lab.plan.layout import Step

MASTER_BYTES = 4
"""Bytes of a weight: the trainer keeps float32."""
ADAM_TOUCHES = 10
"""Numbers read or written for each trained weight in an update: gradient (norm, scaling, use), weight, two moments."""
PREFILL_TOKENS = 16384
"""Prompt tokens that go through the model in one pass of the sampler."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of one device in a phase of any kind."""

    flops: float = 0.0
    bytes: float = 0.0
    """Bytes of memory, read and written."""
    layer_calls: float = 0.0
    """Layers that are started, one after another."""
    messages: tuple[Collective, ...] = ()
    """Between devices."""

    def __add__(self, other: Work) -> Work:
        return Work(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def __mul__(self, times: float) -> Work:
        return Work(
            flops=self.flops * times,
            bytes=self.bytes * times,
            layer_calls=self.layer_calls * times,
            messages=tuple(one * times for one in self.messages),
        )

    @property
    def link_bytes(self) -> float:
        """That come in from other devices."""
        return sum(one.received for one in self.messages)

    @property
    def network_bytes(self) -> float:
        """The bytes that come from other machines."""
        return sum(one.across for one in self.messages)

    def seconds(self, hardware: Hardware, precision: str) -> float:
        """On a device of this hardware."""
        return self.computing(hardware, precision) + self.waiting(hardware, precision)

    def computing(self, hardware: Hardware, precision: str) -> float:
        """Seconds of these, without a word from other devices."""
        busy = max(self.flops / hardware.rate(precision), self.bytes / hardware.bandwidth)
        return busy + self.layer_calls * hardware.efficiency.layer_call

    def waiting(self, hardware: Hardware, precision: str) -> float:
        """Seconds in which a device has nothing to compute, since it waits for others."""
        meanwhile, alone = (
            sum(one.seconds(hardware) for one in self.messages if one.hidden is hidden) for hidden in (True, False)
        )
        return max(0.0, meanwhile - self.computing(hardware, precision)) + alone


@dataclass(frozen=True, kw_only=True)
class Trained:
    """How a model is trained, as far as its arithmetic goes."""

    trained_parameters: int
    adapter_parameters: int = 0
    """The parameters of LoRA; the base is then frozen, and gets no gradients."""
    recomputes: bool = False
    """Gradient checkpointing: the layers run forward a second time."""
    optimizer_bytes: int = MASTER_BYTES
    """Bytes of each of the two moments."""
    ranks: int = 1
    """Devices that divide the moments, and with them the update."""


def linear_flops(model: Architecture, adapters: int = 0) -> float:
    """Operations of one token through all layers: two for each weight that it meets, without attention."""
    counts = model.counts
    return 2.0 * (counts.attention + counts.mlp + counts.active_experts + adapters)


def attention_flops(model: Architecture, context: float) -> float:
    """Operations of attention for one token over `context` tokens, in all layers."""
    seen = min(context, model.sliding_window or context)
    return 2.0 * model.layers * model.heads * (model.key_width + model.value_width) * seen


def head_flops(model: Architecture) -> float:
    """Operations for the logits of one token."""
    return 2.0 * model.hidden * model.vocabulary


def weight_bytes(model: Architecture, precision: str, tokens: float | None = None) -> float:
    """Bytes of the weights that a pass reads; its `tokens` meet so many experts, None: all of them.

    k of E experts for each of n tokens are on average E (1 - (1 - k/E)^n) experts.
    """
    counts = model.counts
    experts = float(counts.experts)
    mixture = next((block.mixture for _, block in model.blocks if block.mixture is not None), None)
    if mixture is not None and tokens is not None:
        experts *= 1 - (1 - mixture.per_token / mixture.experts) ** tokens
    head = model.neighbours * (counts.embeddings if model.tied else counts.head)
    return (counts.attention + counts.mlp + counts.norms + experts + head) * bytes_of(precision)


def bytes_of(precision: str) -> int:
    """The bytes of a number.

    >>> bytes_of("bfloat16"), bytes_of("float32")
    (2, 4)
    """
    return 2 if precision == "bfloat16" else 4


def scoring(model: Architecture, step: Step, precision: str, *, with_head: bool = True, adapters: int = 0) -> Work:
    """One pass over all rows without gradient: old or reference log-probabilities, values, scores."""
    flops = step.computed_tokens * (linear_flops(model, adapters) + attention_flops(model, step.context))
    flops += with_head * step.scored_tokens * head_flops(model)
    passes = step.microbatches
    return Work(flops=flops, bytes=passes * weight_bytes(model, precision), layer_calls=passes * model.layers)


def training(model: Architecture, step: Step, precision: str, how: Trained, *, with_head: bool = True) -> Work:
    """All updates of a step: forward and backward of every row in each epoch, and the optimizer."""
    linear = linear_flops(model)
    adapters = 2.0 * how.adapter_parameters
    forward = linear + adapters
    backward = (linear if how.adapter_parameters else 2 * linear) + 2 * adapters
    per_token = forward * (1 + how.recomputes) + backward
    per_token += attention_flops(model, step.context) * (1 + how.recomputes + 2.5)
    flops = step.epochs * step.computed_tokens * per_token
    if with_head:
        frozen = how.adapter_parameters > 0
        logits = step.scored_tokens / step.microbatches * model.vocabulary * bytes_of(precision)
        again = max(0.0, 1 - KEPT_BYTES / max(1.0, logits))
        flops += step.epochs * step.scored_tokens * head_flops(model) * (2 + (not frozen) + again)
    passes = step.epochs * step.microbatches
    gradients = 2 * MASTER_BYTES * how.trained_parameters
    read = weight_bytes(model, precision) * (2 + how.recomputes)
    update = (
        how.trained_parameters * (ADAM_TOUCHES - 4) * MASTER_BYTES + how.trained_parameters * 4 * how.optimizer_bytes
    )
    return Work(
        flops=flops,
        bytes=passes * (read + gradients) + step.updates * update / how.ranks,
        layer_calls=passes * model.layers * (3 + how.recomputes),
    )


def generating(
    model: Architecture,
    *,
    prompts: int,
    rows: int,
    prompt_tokens: int,
    answer_tokens: int,
    rows_together: int,
    precision: str,
    longest: int = 0,
) -> Work:
    """Sampling: each prompt goes through the model once, then every pass adds one token to the rows in flight.

    A pass reads all weights, and the keys and values of what every row has seen: with few rows that is what takes time.
    Where `answer_tokens` are a mean, there are passes until the longest answer ends, however few rows are left.
    """
    in_flight = max(1, min(rows, rows_together))
    passes = max(-(-rows // in_flight) * answer_tokens, longest)
    context = prompt_tokens + (answer_tokens + 1) / 2
    prefill = prompts * prompt_tokens * (linear_flops(model) + attention_flops(model, (prompt_tokens + 1) / 2))
    decode = rows * answer_tokens * (linear_flops(model) + attention_flops(model, context) + head_flops(model))
    seen = min(context, model.sliding_window or context)
    cache = rows * answer_tokens * seen * model.layers * model.kv_width * bytes_of(precision)
    prefill_passes = max(1, -(-prompts * prompt_tokens // PREFILL_TOKENS))
    read = passes * weight_bytes(model, precision, tokens=in_flight) + prefill_passes * weight_bytes(model, precision)
    return Work(
        flops=prefill + decode,
        bytes=read + cache,
        layer_calls=(passes + prefill_passes) * model.layers,
    )


def publishing(model: Architecture, precision: str) -> Work:
    """The trained weights copied to the sampler."""
    return Work(bytes=model.parameters * (MASTER_BYTES + bytes_of(precision)))
