"""Converts device batches, accumulation and generation batches to our sizes: prompts, minibatches, steps.

TRL, sampled     rows of an update = per_device_train_batch_size * gradient_accumulation_steps * devices
                 prompts_per_step  = generation_batch_size / num_generations,   minibatches = its rows / those
TRL, given rows  prompts_per_step  = rows of an update
verl             prompts_per_step  = train_batch_size,   minibatches = train_batch_size / ppo_mini_batch_size

TRL trains on given rows that are left at the end of a pass as a smaller batch, unless `dataloader_drop_last` is true.
Its samplers and verl leave them out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Any

Get = Callable[[str], Any]
"""A function that returns a setting's value in the other library, or its default; None if it has none."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Another library's batch sizes, converted to ours."""

    prompts: Fraction
    """Prompts, or given rows, per step."""
    origin: str
    """How the sizes were computed, as text."""
    minibatches: Fraction = Fraction(1)
    epochs: int = 1
    counted: int = 1
    """The other library's steps in one of ours: its optimizer steps, or 1 if it counts as we do."""
    limit: int | None = None
    """Total number of steps, as the other library counts them."""
    passes: float | None = None
    """Passes over the rows."""
    first: bool = False
    """True if the passes may end the run before the limit; otherwise the limit replaces them."""
    rows: int | None = None
    """The most rows that a pass may have; None if the file sets no limit."""
    batch: int = 1
    """Rows that are read together. Those at the end of a pass that fill no such batch are left out."""
    whole: Callable[[Fraction], Fraction | int] = ceil
    """Rounds the steps of a pass: `ceil` if the rows left at its end are a smaller batch, `floor` if they are left out,
    `Fraction` if the next pass fills their batch."""
    counts_ours: bool = False
    """True if a step of the other library is one of ours, whatever its sizes are."""
    used: Mapping[str, Sequence[str]]
    """The settings of the other library that these sizes cover -> our sizes that follow from each."""

    @property
    def lengths(self) -> list[str]:
        return [name for name, ours in self.used.items() if ours == STEPS]

    def steps(self, rows: int | None) -> int | None:
        """Return the number of our steps: 0 if a pass has none, None if it depends on an unknown number of rows."""
        limit = None if self.limit is None else max(1, ceil(Fraction(self.limit, self.counted)))
        if rows is None or self.passes is None or not (limit is None or self.first):
            return limit
        used = min(rows, self.rows or rows) // self.batch * self.batch
        steps = ceil(self.passes * self.whole(used / self.prompts))
        return steps if limit is None else min(limit, steps)


BOTH = ("train.prompts_per_step", "train.minibatches")
PROMPTS, MINIBATCHES, EPOCHS, STEPS = BOTH[:1], BOTH[1:], ("train.epochs",), ("train.steps",)
BATCHES = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "generation_batch_size",
    "steps_per_generation",
)
LENGTHS = dict.fromkeys(("max_steps", "num_train_epochs"), STEPS)
PASSES = ("num_train_epochs", "trainer.total_epochs", "dataloader_drop_last")
"""Settings that are read only if no number of steps is given."""
ROWS = ("max_rows", "data.train_max_samples")
"""Limits to the rows of a pass, which also are a setting of ours."""


def generated(get: Get, devices: int) -> Sizes:
    """Convert TRL's GRPO and RLOO: a generation batch is sampled together and trained on in one or more updates."""
    rows = get(BATCHES[0]) * devices
    generation = get("generation_batch_size") or rows * (get("steps_per_generation") or get(BATCHES[1]))
    epochs, minibatches = get("num_iterations"), Fraction(generation, rows * get(BATCHES[1]))
    return Sizes(
        prompts=Fraction(generation, get("num_generations")),
        origin=f"{generation} completions are sampled together, {get('num_generations')} per prompt",
        minibatches=minibatches,
        epochs=epochs,
        counted=max(1, ceil(minibatches * epochs)),
        **_length(get),
        rows=_most(get, ROWS[0]),
        whole=floor,
        used=dict.fromkeys(BATCHES, BOTH) | LENGTHS | {ROWS[0]: STEPS} | {"num_iterations": EPOCHS},
    )


def given(get: Get, devices: int) -> Sizes:
    """Convert TRL's losses on given rows or pairs, and those that sample one group per row."""
    origin = f"{get(BATCHES[0])} per device * {get(BATCHES[1])} accumulated * {devices} device(s)"
    rows = get(BATCHES[0]) * get(BATCHES[1]) * devices
    used: dict[str, tuple[str, ...]] = {**dict.fromkeys(BATCHES[:2], PROMPTS), **LENGTHS, ROWS[0]: STEPS}
    length = _length(get)
    if length["limit"] is None:
        used["dataloader_drop_last"] = STEPS
    batch = get(BATCHES[0]) * devices if get("dataloader_drop_last") else 1
    most = _most(get, ROWS[0])
    return Sizes(prompts=Fraction(rows), origin=origin, **length, rows=most, batch=batch, counts_ours=True, used=used)


def episodes(get: Get, devices: int) -> Sizes:
    """Convert PPO of TRL 0.12 and later, which counts episodes."""
    told = given(get, devices)
    batch, total = int(told.prompts), get("total_episodes")
    return Sizes(
        prompts=told.prompts,
        origin=told.origin,
        minibatches=Fraction(get("num_mini_batches")),
        epochs=get("num_ppo_epochs"),
        limit=ceil(total / batch) if total else told.limit,
        passes=told.passes,
        rows=told.rows,
        whole=Fraction,
        used={**told.used, "total_episodes": STEPS, "num_mini_batches": MINIBATCHES, "num_ppo_epochs": EPOCHS},
    )


def samples(get: Get, devices: int) -> Sizes:
    """Convert PPO of TRL before 0.12, whose `steps` count samples."""
    batch, total = get("batch_size"), get("steps")
    return Sizes(
        prompts=Fraction(batch * devices),
        origin=f"batch_size * {devices} device(s)",
        minibatches=Fraction(batch, get("mini_batch_size") * (get("gradient_accumulation_steps") or 1)),
        epochs=get("ppo_epochs"),
        limit=ceil(total / (batch * devices)) if total else None,
        used={
            "batch_size": BOTH,
            "mini_batch_size": MINIBATCHES,
            "gradient_accumulation_steps": MINIBATCHES,
            "ppo_epochs": EPOCHS,
            "steps": STEPS,
        },
    )


def global_(get: Get, devices: int) -> Sizes:
    """Convert verl's sizes, which cover all devices together. Its steps equal ours."""
    batch = get("data.train_batch_size")
    mini = min(batch, get("actor_rollout_ref.actor.ppo_mini_batch_size"))
    return Sizes(
        prompts=Fraction(batch),
        origin="train_batch_size",
        minibatches=Fraction(batch, mini),
        epochs=get("actor_rollout_ref.actor.ppo_epochs"),
        limit=get("trainer.total_training_steps"),
        passes=get("trainer.total_epochs"),
        first=True,
        rows=_most(get, ROWS[1]),
        whole=floor,
        counts_ours=True,
        used={
            "data.train_batch_size": BOTH,
            "actor_rollout_ref.actor.ppo_mini_batch_size": MINIBATCHES,
            "actor_rollout_ref.actor.ppo_epochs": EPOCHS,
            "trainer.total_training_steps": STEPS,
            "trainer.total_epochs": STEPS,
            ROWS[1]: STEPS,
        },
    )


SIZES = {
    "generated": generated, "given": given, "prompts": given, "episodes": episodes, "samples": samples,
    "global": global_,
}  # fmt: skip


def _length(get: Get) -> dict[str, Any]:
    limit = get("max_steps")
    return {"limit": limit if limit and limit > 0 else None, "passes": get("num_train_epochs")}


def _most(get: Get, name: str) -> int | None:
    rows = get(name)
    return rows if rows and rows > 0 else None
