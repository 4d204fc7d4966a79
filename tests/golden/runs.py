"""The steps of a golden run: recorded completions, and a reward that varies within each group."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.tiny import tiny_model

from posttrain.algorithms import ALGORITHMS
from posttrain.config import load_config, to_yaml
from posttrain.experience.feed import SampledFeed
from posttrain.report.terminal import TerminalView
from posttrain.rewards import build_rewards
from posttrain.store.run_store import RunStore
from posttrain.train.loop import train_step
from posttrain.train.run import Run
from posttrain.train.setup import set_up
from posttrain.types import Completion, Prompt

STEPS = 20
UPDATES: dict[str, dict[str, Any]] = {
    **{key: {"train.epochs": 2} for key in ALGORITHMS},
    "pass_at_k": {"train.epochs": 2, "algorithm.k": 2},  # 2 out of 4: with k = 4 every subset is the whole group
    **{key: {"train.minibatches": 2} for key in ("reinforce", "rloo", "sft")},
    "reward_model": {"train.epochs": 2, "train.learning_rate": 1e-4},
}
"""Two updates per batch: in the first update all ratios are 1, and a group-normalised loss is 0.

At the learning rate of the others, the norm of a reward model's gradient jumps between 0.3 and 16, and rounding grows
from step to step until two processors differ by 2e-4.
"""


def steps_of(
    folder: Path,
    output: Path,
    algorithm: str,
    settings: Mapping[str, Any],
    *,
    steps: int = STEPS,
    change: Callable[[Run], None] = lambda run: None,
) -> list[dict[str, float]]:
    """Return the metrics of the first steps of a golden run, with these settings on top of its recipe. `change` may
    replace parts of the run."""
    resolved = load_config(recipe(folder, algorithm), UPDATES[algorithm] | dict(settings))
    with RunStore.create(output, to_yaml(resolved)) as store, ExitStack() as resources:
        run = set_up(resolved, store, TerminalView(quiet=True), resources)
        if run.feed.samples:
            run.feed = replay(run)
        change(run)
        return [one_step(run, step) for step in range(1, steps + 1)]


def write_inputs(folder: Path) -> Path:
    """Write a model, a teacher with a clear preference for one answer, and words with their letters in order."""
    tiny_model(folder / "model")
    tiny_model(folder / "teacher", seed=1, initializer_range=0.3)
    dice = random.Random(0)
    words = ["".join(dice.choices(string.ascii_lowercase, k=dice.randint(2, 5))) for _ in range(24)]
    rows = [{"prompt": word, "answer": "-", **answers_to(word)} for word in words]
    (folder / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def answers_to(word: str) -> dict[str, Any]:
    """Return the columns of a word. Its letters in order are the answer to imitate, to prefer to the reverse order, to
    label arbitrarily and to rate. Its letters are steps, each right if not before the previous one."""
    ordered = "".join(sorted(word))
    return {
        "completion": ordered,
        "chosen": ordered,
        "rejected": ordered[::-1],
        "label": len(word) % 2 == 0,
        "score": string.ascii_lowercase.index(ordered[0]) / 5,
        "completions": list(word),
        "labels": [before <= letter for before, letter in zip("a" + word, word, strict=False)],
    }


def recipe(folder: Path, algorithm: str) -> dict[str, Any]:
    """Return the recipe. Adam's epsilon is far above the rounding of a gradient, so that a residue of 1e-9 does not
    become a whole step."""
    samples = ALGORITHMS[algorithm].data_kind == "prompts"
    return {
        "model": {"path": str(folder / "model"), "device": "cpu"},
        "teacher": str(folder / "teacher") if "teacher" in ALGORITHMS[algorithm]().needs else None,
        "algorithm": algorithm,
        "data": {"train": str(folder / "words.jsonl"), "eval_fraction": 0},
        "rewards": [{"name": "exact_match"}] if samples else [],  # `replay` replaces it
        "sampling": {"group_size": 4, "max_completion_length": 6},
        "train": {"steps": STEPS, "prompts_per_step": 4, "learning_rate": 1e-3, "adam_eps": 1e-6},
        "seed": 0,
    }


def one_step(run: Run, step: int) -> dict[str, float]:
    data = run.feed.take(step, version=0)
    _, log = train_step(run.trainer, data.experience, step)
    log.add(data.metrics)
    return log.reduce()


def replay(run: Run) -> SampledFeed:
    """Return the feed of the run with recorded completions and a reward that nearly always varies within a group."""

    def vowels(completion: str) -> float:
        return sum(letter in "aeiou" for letter in completion) + 0.1 * len(completion)

    assert isinstance(run.feed, SampledFeed)
    return SampledFeed(
        run.config,
        run.feed.rows,
        Recorded(run.trainer.loaded.tokenizer),
        build_rewards([vowels]),
        pad_id=run.trainer.loaded.pad_id,
        needs=run.trainer.algorithm.needs,
        learns_from_rewards=run.feed.weights is not None,
    )


class Recorded:
    """A sampler whose completions depend on the step, the prompt and the place in the group, but not on the weights."""

    version = 0

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.ids = tokenizer.convert_tokens_to_ids(list(string.ascii_lowercase))

    def generate(
        self, prompts: Sequence[Prompt], sampling: Any, *, group_size: int, seed: int
    ) -> list[list[Completion]]:
        length = sampling.max_completion_length
        return [[self.one(f"{seed} {p.index} {g}", length) for g in range(group_size)] for p in prompts]

    def each(
        self, prompts: Sequence[Prompt], sampling: Any, *, group_size: int, seed: int
    ) -> Iterator[tuple[int, int, Completion]]:
        for place, group in enumerate(self.generate(prompts, sampling, group_size=group_size, seed=seed)):
            yield from ((place, g, completion) for g, completion in enumerate(group))

    def one(self, seed: str, max_length: int) -> Completion:
        dice = random.Random(seed)
        ids = dice.choices(self.ids, k=dice.randint(1, max_length))
        ended = len(ids) < max_length
        text = self.tokenizer.decode(ids)
        ids = (*ids, self.tokenizer.eos_token_id) if ended else tuple(ids)
        return Completion(
            ids=ids,
            logprobs=(-3.7,) * len(ids),
            versions=(0,) * len(ids),
            finish_reason="eos" if ended else "length",
            text=text,
        )
