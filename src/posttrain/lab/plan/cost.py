"""Floating-point operations and bytes of a step, and the resulting seconds.

    forward, per token    2 N_active + 2 h (d_k + d_v) c per layer      c: tokens that a token attends to
    head                  2 D V, only for scored tokens
    backward              2 x forward of the linear layers (1 x if the weights are frozen), 2.5 x of attention
    computation           max(operations / rate, bytes / bandwidth) + layer calls x minimum time of a call
    seconds               max(computation, overlapped communication) + exposed communication (collectives.py)

N_active is the number of weights that one token uses; in a mixture, only those of its experts. The fused backward of
attention recomputes the scores: five products instead of the two of the forward pass (arXiv:2205.14135).

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
"""Bytes per weight in the trainer, which keeps float32."""
ADAM_TOUCHES = 10
"""Numbers read or written for each trained weight in an update: gradient (norm, scaling, use), weight, two moments."""
PREFILL_TOKENS = 16384
"""Maximum prompt tokens in one pass of the sampler."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of one device."""

    flops: float = 0.0
    bytes: float = 0.0
    """Bytes of memory, read and written."""
    layer_calls: float = 0.0
    """Number of layer calls, one after the other."""
    messages: tuple[Collective, ...] = ()
    """Communication between devices."""

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
        """Bytes received from other devices."""
        return sum(one.received for one in self.messages)

    @property
    def network_bytes(self) -> float:
        """Bytes received from other machines."""
        return sum(one.across for one in self.messages)

    def seconds(self, hardware: Hardware, precision: str) -> float:
        """Return the seconds of this work on a device of this hardware."""
        return self.computing(hardware, precision) + self.waiting(hardware, precision)

    def computing(self, hardware: Hardware, precision: str) -> float:
        """Return the seconds of computation, without communication."""
        busy = max(self.flops / hardware.rate(precision), self.bytes / hardware.bandwidth)
        return busy + self.layer_calls * hardware.efficiency.layer_call

    def waiting(self, hardware: Hardware, precision: str) -> float:
        """Return the seconds in which a device waits for others and computes nothing."""
        meanwhile, alone = (
            sum(one.seconds(hardware) for one in self.messages if one.hidden is hidden) for hidden in (True, False)
        )
        return max(0.0, meanwhile - self.computing(hardware, precision)) + alone


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The facts about a model's training that its arithmetic depends on."""

    trained_parameters: int
    adapter_parameters: int = 0
    """Parameters of LoRA adapters. If there are any, the base is frozen and gets no gradients."""
    recomputes: bool = False
    """True with gradient checkpointing: the layers run forward a second time."""
    optimizer_bytes: int = MASTER_BYTES
    """Bytes per parameter of each of the two moments."""
    ranks: int = 1
    """Number of devices that shard the moments, and with them the update."""


def linear_flops(model: Architecture, adapters: int = 0) -> float:
    """Return the operations of one token in all layers: two per weight that it uses, without attention."""
    counts = model.counts
    return 2.0 * (counts.attention + counts.mlp + counts.active_experts + adapters)


def attention_flops(model: Architecture, context: float) -> float:
    """Return the operations of attention for one token over `context` tokens, in all layers."""
    seen = min(context, model.sliding_window or context)
    return 2.0 * model.layers * model.heads * (model.key_width + model.value_width) * seen


def head_flops(model: Architecture) -> float:
    """Return the operations for the logits of one token."""
    return 2.0 * model.hidden * model.vocabulary


def weight_bytes(model: Architecture, precision: str, tokens: float | None = None) -> float:
    """Return the bytes of the weights that a pass reads. Its `tokens` decide how many experts; None means all.

    If each of n tokens uses k of E experts, they use E (1 - (1 - k/E)^n) experts on average.
    """
    counts = model.counts
    experts = float(counts.experts)
    mixture = next((block.mixture for _, block in model.blocks if block.mixture is not None), None)
    if mixture is not None and tokens is not None:
        experts *= 1 - (1 - mixture.per_token / mixture.experts) ** tokens
    head = model.neighbours * (counts.embeddings if model.tied else counts.head)
    return (counts.attention + counts.mlp + counts.norms + experts + head) * bytes_of(precision)


def bytes_of(precision: str) -> int:
    """Return the bytes per number.

    >>> bytes_of("bfloat16"), bytes_of("float32")
    (2, 4)
    """
    return 2 if precision == "bfloat16" else 4


def scoring(model: Architecture, step: Step, precision: str, *, with_head: bool = True, adapters: int = 0) -> Work:
    """Return the work of a pass over all rows without gradient: old or reference log-probabilities, values, scores."""
    flops = step.computed_tokens * (linear_flops(model, adapters) + attention_flops(model, step.context))
    flops += with_head * step.scored_tokens * head_flops(model)
    passes = step.microbatches
    return Work(flops=flops, bytes=passes * weight_bytes(model, precision), layer_calls=passes * model.layers)


def training(model: Architecture, step: Step, precision: str, how: Trained, *, with_head: bool = True) -> Work:
    """Return the work of all updates in a step: forward and backward of each row in each epoch, and the optimizer."""
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
    """Return the work of sampling: each prompt goes through the model once, then each pass adds a token to every row.

    A pass reads all weights, and the keys and values of all rows. With few rows, reading dominates the time. If
    `answer_tokens` is a mean, passes continue until the longest answer ends, however few rows are left.
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
    """Return the work of copying the trained weights to the sampler."""
    return Work(bytes=model.parameters * (MASTER_BYTES + bytes_of(precision)))
