"""The input and the result of a plan: a workload, and the bytes of each part in each phase.

Token counts are per row. Sizes are in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from posttrain.lab.plan.architecture import Architecture

Role = Literal["policy", "reference", "critic", "reward model", "teacher", "sampler", "engines", "other ranks"]
"""The owner of some bytes. The sampler owns keys and values, and its copy of the weights, if it has one. Engines and
other ranks count only on a CPU, where their processes share the memory of the trainer."""
PhaseName = Literal["generate", "score", "train", "publish"]
DataKind = Literal["prompts", "examples", "pairs", "labels", "ratings", "steps"]
CriticKind = Literal["none", "separate", "shared", "lora"]
Engine = Literal["shared", "copy", "separate"]
"""The model that decodes: the policy itself, a separate copy in its process, or a server on separate devices."""
Sharding = Literal["none", "optimizer", "gradients", "full", "hybrid"]
"""What the ranks shard: nothing, or ZeRO's stages 1, 2 and 3; FSDP's full shard is stage 3. Hybrid is stage 3 inside
groups, such as the ranks of a machine, with a replica in each group (mesh.py)."""

BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """Low-rank adapters on linear layers."""

    rank: int = 16
    targets: tuple[str, ...] | None = None
    """Names as in `Linear.name`. None means every linear layer except the head."""
    unknown: tuple[str, ...] = ()
    """Names of modules that the model's family does not have, as far as the plan knows. They are not counted."""
    dropout: bool = False


@dataclass(frozen=True, kw_only=True)
class Turns:
    """The turns of completions with tools or an environment. Means decide the time, maxima the memory."""

    number: int
    """Maximum number of turns."""
    tokens: int
    """Maximum number of tokens sampled in a turn."""
    given: int = 0
    """Tokens of a reply between two turns."""
    mean_number: float = 0.0
    """Mean number of turns. 0 means the maximum."""
    mean_tokens: int = 0
    """Mean tokens of a turn. 0 means the maximum."""
    seconds: float = 0.0
    """Time of a reply, in seconds."""
    last_is_answered: bool = False
    """True if the last turn gets a reply. An environment replies to it; tools reply only to calls."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean_number", self.mean_number or float(self.number))
        object.__setattr__(self, "mean_tokens", self.mean_tokens or self.tokens)

    @property
    def drawn(self) -> int:
        """Maximum number of sampled tokens in a trajectory."""
        return self.number * self.tokens

    @property
    def whole(self) -> int:
        """Maximum number of tokens in a trajectory, including the replies between turns."""
        return self.drawn + (self.number - 1) * self.given

    @property
    def mean_drawn(self) -> int:
        return max(1, round(self.mean_number * self.mean_tokens))

    @property
    def mean_whole(self) -> int:
        return self.mean_drawn + round((self.mean_number - 1) * self.given)

    @property
    def answers(self) -> float:
        """Mean number of replies that a trajectory waits for."""
        return self.mean_number if self.last_is_answered else self.mean_number - 1


@dataclass(frozen=True, kw_only=True)
class Workload:
    """All inputs that decide memory, arithmetic and time of a step. The defaults equal those of the config."""

    architecture: Architecture
    algorithm: str
    """Key of `ALGORITHMS`."""
    needs: frozenset[str]
    """The inputs that the algorithm needs with its settings: `Algorithm.needs`."""
    data_kind: DataKind = "prompts"
    """Kind of rows. A sampler answers prompts; all other kinds have given answers."""
    old_pass: bool = False
    """True if the policy's log-probabilities are computed before the updates."""

    prompts_per_step: int = 16
    group_size: int = 8
    """Completions per prompt. 1 if nothing is sampled."""
    prompt_tokens: int = 256
    """Length of the longest prompt, in tokens."""
    completion_tokens: int = 256
    """Length of the longest completion, in tokens."""
    mean_completion_tokens: int | None = None
    """Mean length of completions, in tokens. None means the longest. It changes time, not memory."""
    mean_prompt_tokens: int | None = None
    """Mean length of prompts, in tokens. None means the longest."""
    turns: Turns | None = None
    """The turns of a completion. None means a single turn."""
    minibatches: int = 1
    epochs: int = 1
    tokens_per_microbatch: int = 2048
    logprob_chunk_tokens: int = 1024
    max_batch_rows: int = 64
    """Maximum number of rows decoded together."""
    steps: int = 1

    device: Literal["cpu", "cuda"] = "cpu"
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of the computation. Trained weights are float32."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    packed_sampler: bool = False
    """True if the decoding copy holds packed weights (on a CPU)."""
    onednn: bool = False
    """True if training computes float32 products with oneDNN (on a CPU)."""
    gradient_checkpointing: bool = False
    lora: Adapters | None = None
    optimizer_bits: Literal[32, 8] = 32
    """Bits of each of AdamW's two moments. With 8, each block has a scale."""

    critic: CriticKind = "none"
    critic_architecture: Architecture | None = None
    """Architecture of a separate critic. None means the policy's."""
    critic_rank: int = 16
    reference: Architecture | None = None
    """Architecture of a separate reference model. None means the policy's start."""
    teacher: Architecture | None = None
    reward_models: tuple[Architecture, ...] = ()

    ranks: int = 1
    """Number of devices that train together."""
    node: int = 8
    """Number of devices per machine."""
    sharding: Sharding = "none"
    shard: int | None = None
    """Ranks that together hold one copy with hybrid sharding. None means the ranks of one machine."""
    gathered: Literal["float32", "bfloat16"] | None = None
    """Precision in which sharded weights are gathered for a pass. None means as stored, as runs do (models/layout.py).
    Other libraries, whose published speeds are predicted (benchmarks/published), cast them first."""
    reduced: Literal["float32", "bfloat16"] = "float32"
    """Precision in which sharded gradients are summed."""
    cpu_offload: bool = False
    """True if the shards of weights, gradients and moments stay in main memory between the passes of a block."""
    tensor: int = 1
    """Number of neighbouring ranks that divide matrices (tensor parallel). They compute the same rows."""
    engine: Engine = "shared"
    samplers: int | None = None
    """Number of samplers, each with a full copy, while other ranks wait. In runs it is the first rank only
    (train/sharded_sampler.py), or `rollout.engines` engines. None means that all ranks sample their own prompts, as on
    one device and in other libraries."""
    engine_ranks: int = 1
    """Number of devices of separate engines."""
    engine_processes: int = 0
    """Number of engines whose processes share the memory of the trainer (on a CPU)."""
    engine_prompts: int = 1
    """Maximum number of prompts that such an engine answers at the same time."""
    rank_processes: int = 0
    """Number of other ranks whose processes share the memory of the first one (on a CPU). `ranks` is then 1."""
    engine_tensor: int | None = None
    """Number of devices per engine, which divide its weights. None means all, up to those of one machine."""

    @property
    def rows(self) -> int:
        """Number of rows in a step: completions, or given rows (two per pair)."""
        per_prompt = self.group_size if self.data_kind == "prompts" else 2 if self.data_kind == "pairs" else 1
        return self.prompts_per_step * per_prompt

    @property
    def gathers_casts(self) -> bool:
        """True if sharded weights are gathered in the precision of the products, so that no cast is needed."""
        return self.gathered == self.precision

    @property
    def scores(self) -> bool:
        """True if the trained model gives a score and has no language-model head."""
        return "scores" in self.needs

    @property
    def row_tokens(self) -> int:
        """Length of the longest row, in tokens."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def scored_tokens(self) -> int:
        """Number of sampled tokens in the longest completion. The other tokens are context."""
        return self.completion_tokens if self.turns is None else min(self.completion_tokens, self.turns.drawn)


@dataclass(frozen=True, kw_only=True)
class Part:
    """Bytes of one kind that belong to one role."""

    role: Role
    what: str
    """Kind: weights, gradients, optimizer state, activations, logits, keys and values, temporaries ..."""
    bytes: int
    why: str = ""
    """The arithmetic in words."""
    stays: bool = False
    """Does it stay in memory from one phase to the next?"""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """The peak of a phase, on one device."""

    name: PhaseName
    parts: tuple[Part, ...]
    moment: str = ""
    """Name of the moment: "backward of the head", "optimizer step" ..."""
    place: Literal["trainer", "engine"] = "trainer"

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    def of(self, role: str | None = None, what: str | None = None) -> int:
        """Return the bytes of the parts with this role and kind. None matches any."""
        return sum(p.bytes for p in self.parts if role in (None, p.role) and what in (None, p.what))

    @property
    def by_role(self) -> Mapping[str, int]:
        return {role: self.of(role) for role in dict.fromkeys(part.role for part in self.parts)}


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Bytes of every phase of a step, per device."""

    workload: Workload
    phases: tuple[Phase, ...]
    notes: tuple[str, ...] = field(default=())
    """Notes on numbers that were computed from papers instead of measured, and on unknown facts."""

    @property
    def peak(self) -> Phase:
        """The phase with the most bytes, on the training devices."""
        return max((p for p in self.phases if p.place == "trainer"), key=lambda phase: phase.bytes)

    @property
    def bytes(self) -> int:
        return self.peak.bytes

    def phase(self, name: str) -> Phase | None:
        """Return the phase of this name. None if the step has no such phase."""
        return next((phase for phase in self.phases if phase.name == name), None)

    @property
    def models(self) -> tuple[str, ...]:
        """Roles with their own weights: PPO has four, GRPO with a reference two, SimPO one."""
        held = [p.role for phase in self.phases for p in phase.parts if p.what == "weights" and p.role != "sampler"]
        return tuple(dict.fromkeys(held))


# --- one moment ----------------------------------------------------------------------------------------------------

RECORD_BYTES = 72
"""Bytes per position of a step's padded records: ids and versions of 8 bytes, masks of 1, and a dozen numbers of 4.
Most of them exist twice: as experience, and as rows of a batch."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A moment of a phase with its parts. The largest moment of a phase is its peak."""

    name: str
    parts: Sequence[Part]

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.parts)


def part(role: Role, what: str, size: int, why: str = "") -> Part:
    """Return a part that exists only for a moment."""
    return Part(role=role, what=what, bytes=size, why=why)


def records(workload: Workload) -> Part:
    """Return the part for token ids, masks, log-probabilities and advantages."""
    size = RECORD_BYTES * workload.rows * workload.row_tokens
    return part("policy", "records of the step", size, f"{workload.rows} rows of {workload.row_tokens} places")
