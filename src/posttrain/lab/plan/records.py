"""The input and the result of a plan: a workload, and the bytes of each part in each phase.

Counts of tokens are those of one row, sizes are in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from posttrain.lab.plan.architecture import Architecture

Role = Literal["policy", "reference", "critic", "reward model", "teacher", "sampler"]
"""Whose bytes they are; a sampler is what decodes: keys and values, and a copy of the weights where it has one."""
PhaseName = Literal["generate", "score", "train", "publish"]
DataKind = Literal["prompts", "examples", "pairs", "labels", "ratings", "steps"]
CriticKind = Literal["none", "separate", "shared", "lora"]
Engine = Literal["shared", "copy", "separate"]
"""Who decodes: the modules of the policy, a copy of its own beside it, or a server on devices of its own."""
Sharding = Literal["none", "optimizer", "gradients", "full", "hybrid"]
"""What is divided among the ranks: nothing, or ZeRO's stages 1, 2 and 3; FSDP's full shard is the third. Hybrid is the
third inside of groups, such as those of each machine, and the same in all of them (mesh.py)."""

BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """Low-rank adapters on linear layers."""

    rank: int = 16
    targets: tuple[str, ...] | None = None
    """Names as in `Linear.name`; None is every linear layer but the head."""
    dropout: bool = False


@dataclass(frozen=True, kw_only=True)
class Turns:
    """The turns of completions in which tools or an environment answer. Means are for time, the others for memory."""

    number: int
    """At most."""
    tokens: int
    """That are drawn in a turn, at most."""
    given: int = 0
    """Tokens of an answer, which stand between two turns."""
    mean_number: float = 0.0
    """0: as many as there may be."""
    mean_tokens: int = 0
    """0: as long as it may be."""
    seconds: float = 0.0
    """Until an answer is there."""
    last_is_answered: bool = False
    """By an environment; tools answer no turn that calls none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean_number", self.mean_number or float(self.number))
        object.__setattr__(self, "mean_tokens", self.mean_tokens or self.tokens)

    @property
    def drawn(self) -> int:
        """Tokens of a trajectory, at most."""
        return self.number * self.tokens

    @property
    def whole(self) -> int:
        """With what is given between them."""
        return self.drawn + (self.number - 1) * self.given

    @property
    def mean_drawn(self) -> int:
        return max(1, round(self.mean_number * self.mean_tokens))

    @property
    def mean_whole(self) -> int:
        return self.mean_drawn + round((self.mean_number - 1) * self.given)

    @property
    def answers(self) -> float:
        """That a trajectory waits for."""
        return self.mean_number if self.last_is_answered else self.mean_number - 1


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Everything that decides memory, arithmetic and time of a step. Defaults are those of the config."""

    architecture: Architecture
    algorithm: str
    """Key of `ALGORITHMS`."""
    needs: frozenset[str]
    """The inputs that the algorithm needs with these settings: `Algorithm.needs`."""
    data_kind: DataKind = "prompts"
    """Prompts are answered by a sampler; everything else is given."""
    old_pass: bool = False
    """Log-probabilities of the policy are computed before the updates."""

    prompts_per_step: int = 16
    group_size: int = 8
    """Completions per prompt; 1 where nothing is sampled."""
    prompt_tokens: int = 256
    """Tokens of the longest prompt."""
    completion_tokens: int = 256
    """Tokens of the longest completion."""
    mean_completion_tokens: int | None = None
    """Mean tokens of all completions; None: as many as the longest. Time depends on it, memory does not."""
    mean_prompt_tokens: int | None = None
    """The same of all prompts."""
    turns: Turns | None = None
    """The turns of a completion; None: there is one."""
    minibatches: int = 1
    epochs: int = 1
    tokens_per_microbatch: int = 2048
    logprob_chunk_tokens: int = 1024
    max_batch_rows: int = 64
    """Rows that are decoded together."""
    steps: int = 1

    device: Literal["cpu", "cuda"] = "cpu"
    precision: Literal["float32", "bfloat16"] = "float32"
    """The precision of the computation; trained weights are float32."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    packed_sampler: bool = False
    """The copy that decodes holds its weights packed (on a CPU)."""
    onednn: bool = False
    """float32 products of training go through oneDNN (on a CPU)."""
    gradient_checkpointing: bool = False
    lora: Adapters | None = None
    optimizer_bits: Literal[32, 8] = 32
    """Bits of each of AdamW's two moments. 8: in blocks with a scale each."""

    critic: CriticKind = "none"
    critic_architecture: Architecture | None = None
    """The architecture of a separate critic; None: the policy's."""
    critic_rank: int = 16
    reference: Architecture | None = None
    """A separate reference model; None: the policy's start."""
    teacher: Architecture | None = None
    reward_models: tuple[Architecture, ...] = ()

    ranks: int = 1
    """Devices that train together."""
    node: int = 8
    """Devices of one machine."""
    sharding: Sharding = "none"
    shard: int | None = None
    """Ranks that hold one copy together with hybrid sharding; None: those of one machine."""
    gathered: Literal["float32", "bfloat16"] | None = None
    """In which divided weights come together for a pass. None: as they lie, as runs do it (models/layout.py).
    Other libraries, whose published speeds are predicted (benchmarks/published), cast them first."""
    reduced: Literal["float32", "bfloat16"] = "float32"
    """In which divided gradients are summed."""
    cpu_offload: bool = False
    """Parts of weights, gradients and moments lie in main memory between the passes of a block."""
    tensor: int = 1
    """Neighbours among the ranks that divide matrices, and compute the same rows."""
    engine: Engine = "shared"
    samplers: int | None = None
    """Of several ranks those that sample, each from a whole copy, while the others wait: as runs do it, the first alone
    (train/sharded_sampler.py) or as many engines as `rollout.engines`. None: all of them, each its own prompts, as
    other libraries do it, and one device."""
    engine_ranks: int = 1
    """Devices of separate engines."""
    engine_tensor: int | None = None
    """Of them those of one engine, which divide its weights; None: all, up to those of one machine."""

    @property
    def rows(self) -> int:
        """The rows of a step: completions, or given rows (two for a pair)."""
        per_prompt = self.group_size if self.data_kind == "prompts" else 2 if self.data_kind == "pairs" else 1
        return self.prompts_per_step * per_prompt

    @property
    def gathers_casts(self) -> bool:
        """Divided weights come together in the precision of the products: nothing is left to be cast."""
        return self.gathered == self.precision

    @property
    def scores(self) -> bool:
        """The model that is trained gives a score in place of words: it has no head of a language model."""
        return "scores" in self.needs

    @property
    def row_tokens(self) -> int:
        """Tokens of the longest row."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def scored_tokens(self) -> int:
        """The tokens of the longest completion that the policy drew; the others are context."""
        return self.completion_tokens if self.turns is None else min(self.completion_tokens, self.turns.drawn)


@dataclass(frozen=True, kw_only=True)
class Part:
    """Bytes of one kind that belong to one role."""

    role: Role
    what: str
    """weights, gradients, optimizer state, activations, logits, keys and values, temporaries, weight transfer ..."""
    bytes: int
    why: str = ""
    """The arithmetic in words."""
    stays: bool = False
    """Does it stay from one phase to the next?"""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """The moment of a phase in which most is alive, on one device."""

    name: PhaseName
    parts: tuple[Part, ...]
    moment: str = ""
    """Which one it is: "backward of the head", "optimizer step" ..."""
    place: Literal["trainer", "engine"] = "trainer"

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    def of(self, role: str | None = None, what: str | None = None) -> int:
        """Bytes of the parts of that role and kind; None is any."""
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
    """Numbers that were computed from papers and not measured, and facts that could not be known."""

    @property
    def peak(self) -> Phase:
        """The phase that needs most, on the devices that train."""
        return max((p for p in self.phases if p.place == "trainer"), key=lambda phase: phase.bytes)

    @property
    def bytes(self) -> int:
        return self.peak.bytes

    def phase(self, name: str) -> Phase | None:
        """None where the step has no such phase."""
        return next((phase for phase in self.phases if phase.name == name), None)

    @property
    def models(self) -> tuple[str, ...]:
        """Roles that hold weights of their own: PPO has four, GRPO with a reference two, SimPO one."""
        held = [p.role for phase in self.phases for p in phase.parts if p.what == "weights" and p.role != "sampler"]
        return tuple(dict.fromkeys(held))


# --- one instant ---------------------------------------------------------------------------------------------------

RECORD_BYTES = 72
"""Of each place of the padded records of a step: ids and versions of 8 bytes, masks of one, and a dozen numbers of 4,
most of them twice: as experience, and as the rows of a batch."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The moments of a phase are compared, and the largest one stands for the phase."""

    name: str
    parts: Sequence[Part]

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.parts)


def part(role: Role, what: str, size: int, why: str = "") -> Part:
    """What is there for a moment."""
    return Part(role=role, what=what, bytes=size, why=why)


def records(workload: Workload) -> Part:
    """Token ids, masks, log-probabilities, advantages."""
    size = RECORD_BYTES * workload.rows * workload.row_tokens
    return part("policy", "records of the step", size, f"{workload.rows} rows of {workload.row_tokens} places")
