"""Twenty steps of each algorithm give the numbers on file, and so does every other way to compute the same steps.

The completions are recorded, not sampled: a rounding difference could flip a sampled token, and from there on two runs
of an equivalence class would learn from different data.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
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
from posttrain.types import Batch, Completion, Experience, Prompt

STEPS = 20
CLOSE = {"rtol": 1e-4, "atol": 1e-6}

UPDATES: dict[str, dict[str, Any]] = {
    **{key: {"train.epochs": 2} for key in ALGORITHMS},
    "pass_at_k": {"train.epochs": 2, "algorithm.k": 2},  # of 4: with all 4 every subset is the whole group
    **{key: {"train.minibatches": 2} for key in ("reinforce", "rloo", "sft")},
}
"""Two updates per batch: in the first alone all ratios are 1, and a group-normalised loss is 0."""
BEGUN = 6
"""Steps in which the other algorithms are followed quickly: loss, updates and state have shown themselves by then."""
QUICK = ("grpo", "ppo", "online_dpo", "sft", "dpo", "kto", "reward_model", "reward_regression", "process_reward_model")
ONE_OF_EACH_KIND = [key if key in QUICK else pytest.param(key, marks=pytest.mark.slow) for key in UPDATES]
"""Every algorithm, of which one of each kind of data, or of model beside the policy, is not slow."""


# --- what must follow the golden runs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [key for key in UPDATES if key not in QUICK])
def test_an_algorithm_begins_as_its_golden_run(train, golden, algorithm):
    golden(algorithm).compare(train(algorithm, steps=BEGUN), first=BEGUN, **CLOSE)


@pytest.mark.parametrize("algorithm", ONE_OF_EACH_KIND)
def test_an_algorithm_follows_its_golden_run(train, golden, algorithm):
    golden(algorithm).check(train(algorithm), **CLOSE)


@pytest.mark.parametrize(
    "settings",
    [
        {"train.tokens_per_microbatch": 20},
        {"train.logprob_chunk_tokens": 5},
        {"train.gradient_checkpointing": True},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_a_setting_of_memory_and_speed_leaves_the_golden_run_as_it_is(train, golden, settings):
    golden("grpo").compare(train("grpo", settings), **CLOSE)


def test_the_order_of_the_rows_leaves_the_golden_run_as_it_is(train, golden):
    golden("grpo").compare(train("grpo", change=permute_rows), **CLOSE)


@pytest.mark.parametrize("algorithm", ONE_OF_EACH_KIND)
def test_one_percent_more_loss_is_noticed(train, golden, algorithm):
    """Adam takes the same steps for a loss that is longer by a factor; the golden run still tells."""
    begun = train(algorithm, change=one_percent_more_loss, steps=2)
    with pytest.raises(AssertionError, match=r"of step [12] is .*, on file"):
        golden(algorithm).compare(begun, first=2, no_drift=False, **CLOSE)


def test_a_small_error_to_one_side_is_noticed(golden):
    """Half of what each number may differ by, but always upwards."""
    series = json.loads(golden("sft").file.read_text())
    steps = [dict(zip(series, values, strict=True)) for values in zip(*series.values(), strict=True)]
    golden("sft").compare(steps, **CLOSE)
    with pytest.raises(AssertionError, match=r"loss drifts by \+0\.00017"):
        golden("sft").compare([{name: value * (1 + 5e-5) for name, value in step.items()} for step in steps], **CLOSE)


@pytest.mark.parametrize("algorithm", UPDATES)
def test_every_step_of_a_golden_run_learns(golden, algorithm):
    """Rewards vary, gradients are there, entropy is that of a policy that still tries."""
    numbers = json.loads(golden(algorithm).file.read_text())
    assert all(len(values) == STEPS for values in numbers.values())
    assert all(norm > 1e-2 for norm in numbers["grad_norm"])
    assert all(entropy > 1 for entropy in numbers.get("entropy", ()))  # what scores has none
    assert len(set(numbers["loss"])) == STEPS
    assert len(set(numbers.get("reward", numbers["loss"]))) > STEPS / 2


# --- how a golden run is made -----------------------------------------------------------------------------------------


@pytest.fixture
def train(folder, tmp_path) -> Callable[..., list[dict[str, float]]]:
    """`train(algorithm, settings, change=..., steps=...)`: the metrics of each of the first steps of its golden run;
    `change` may replace parts of the run."""

    def run_steps(
        algorithm: str,
        settings: Mapping[str, Any] | None = None,
        change: Callable[[Run], None] = lambda run: None,
        steps: int = STEPS,
    ) -> list[dict[str, float]]:
        resolved = load_config(recipe(folder, algorithm), UPDATES[algorithm] | dict(settings or {}))
        with RunStore.create(tmp_path / "run", to_yaml(resolved)) as store, ExitStack() as resources:
            run = set_up(resolved, store, TerminalView(quiet=True), resources)
            if run.feed.samples:
                run.feed = replay(run)
            change(run)
            return [one_step(run, step) for step in range(1, steps + 1)]

    return run_steps


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model, a teacher that has decided on an answer, and words with their letters in order."""
    folder = tmp_path_factory.mktemp("golden")
    tiny_model(folder / "model")
    tiny_model(folder / "teacher", seed=1, initializer_range=0.3)
    dice = random.Random(0)
    words = ["".join(dice.choices(string.ascii_lowercase, k=dice.randint(2, 5))) for _ in range(24)]
    rows = [{"prompt": word, "answer": "-", **answers_to(word)} for word in words]
    (folder / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def answers_to(word: str) -> dict[str, Any]:
    """Its letters in order, as an answer to imitate, to prefer to the order backwards, to label as one likes, or to
    rate; and the letters one by one, each right where it comes after the one before."""
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
    """Adam's epsilon is far above the rounding of a gradient: what cancels to 1e-9 must not become a whole step."""
    samples = ALGORITHMS[algorithm].data_kind == "prompts"
    return {
        "model": {"path": str(folder / "model"), "device": "cpu"},
        "teacher": str(folder / "teacher") if "teacher" in ALGORITHMS[algorithm]().needs else None,
        "algorithm": algorithm,
        "data": {"train": str(folder / "words.jsonl"), "eval_fraction": 0},
        "rewards": [{"name": "exact_match"}] if samples else [],  # replaced by one that varies
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
    """The feed of the run, but with recorded completions and a reward that nearly always varies within a group."""

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
    """A sampler whose completions depend on the step, the prompt and the place in the group, and on no weights."""

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


# --- changes to a run -------------------------------------------------------------------------------------------------


def permute_rows(run: Run) -> None:
    weigh, generator = run.trainer.advantages, torch.Generator().manual_seed(1)

    class Permuted:
        """The weighing of the run with its rows in another order."""

        def __getattr__(self, name: str) -> Any:
            return getattr(weigh, name)

        def __call__(self, experience: Experience | Batch) -> Batch:
            batch = weigh(experience)
            return batch.rows(torch.randperm(batch.num_rows, generator=generator))

    run.trainer.advantages = Permuted()  # pyright: ignore[reportAttributeAccessIssue]


def one_percent_more_loss(run: Run) -> None:
    algorithm = run.trainer.algorithm

    class Longer:
        """The algorithm of the run with a small mistake in its loss."""

        def __getattr__(self, name: str) -> Any:
            return getattr(algorithm, name)

        def loss(self, *args: Any) -> Any:
            loss, metrics = algorithm.loss(*args)
            return 1.01 * loss, metrics

    run.trainer.algorithm = Longer()  # pyright: ignore[reportAttributeAccessIssue]
