"""Every converted file takes a first step, on tiny models and on rows in the form of its data set.

Only models, data paths, the number of prompts and lengths differ from the file that `convert` wrote, and the settings
that a machine without a GPU cannot use: vLLM and trackers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from tests.catalogue import few
from tests.lab.convert import peers
from tests.lab.convert.test_convert import FILES, HERE, ROWS
from transformers import AutoModelForCausalLM, AutoTokenizer

from posttrain.config import load_config, to_yaml
from posttrain.experience.feed import SampledFeed
from posttrain.lab.convert import convert
from posttrain.report.terminal import TerminalView
from posttrain.store.run_store import RunStore
from posttrain.train.loop import train_step
from posttrain.train.setup import set_up
from posttrain.types import Completion, Prompt


class Given:
    """A sampler that returns the completions of `peers.answer_to`, with the model's own log-probabilities."""

    version = 0

    def __init__(self, folder: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder)

    def each(
        self, prompts: Sequence[Prompt], sampling: Any, *, group_size: int, seed: int
    ) -> Iterator[tuple[int, int, Completion]]:
        for place, prompt in enumerate(prompts):
            for number in range(group_size):
                yield place, number, self.one(prompt, number, sampling)

    def one(self, prompt: Prompt, number: int, sampling: Any) -> Completion:
        text, ends = peers.answer_to(prompt.text, number)
        ids = self.tokenizer(text, add_special_tokens=False).input_ids
        ends = ends and len(ids) < sampling.max_completion_length
        ids = [*ids, self.tokenizer.eos_token_id] if ends else ids[: sampling.max_completion_length]
        with torch.no_grad():
            logits = self.model(torch.tensor([[*prompt.ids, *ids]])).logits[0, len(prompt.ids) - 1 : -1]
        logprobs = (logits / (sampling.temperature or 1.0)).log_softmax(dim=-1)
        return Completion(
            ids=tuple(ids),
            logprobs=tuple(logprobs[range(len(ids)), ids].tolist()),
            versions=(0,) * len(ids),
            finish_reason="eos" if ends else "length",
            text=self.tokenizer.decode(ids, skip_special_tokens=True),
        )


class Case(NamedTuple):
    """The replacement for a data set, and the decisions that the top of the converted file asks for."""

    row: Callable[[int], dict[str, Any]]
    more: Mapping[str, Any] = MappingProxyType({})
    data: str = "rows.jsonl"


REWARDS = "my_rewards.py"
WRITTEN = """
def right_answer(completions, answer, **columns):
    return [float(right in str(text)) for text, right in zip(completions, answer)]

def brevity(completions, **columns):
    return [-len(c) for c in completions]

def longest(completions, **columns):
    return [float(len(one if isinstance(one, str) else one[0]["content"])) for one in completions]

def score(prompt, completion, reward_model, **row):
    return float(reward_model["ground_truth"] in str(completion))
"""


ROWS_OF_TRL = {
    "dpo.py": peers.ultrafeedback_of_trl, "grpo_sequence.yaml": peers.deepmath, "ipo.sh": peers.ultrafeedback_of_trl
}  # fmt: skip
"""Rows for scripts whose data set TRL 1.16 does not accept."""


def own(name: str) -> list[dict[str, str]]:
    return [{"function": f"{REWARDS}:{name}"}]


CASES = {
    "cispo.sh": Case(peers.deepmath),
    "dpo.py": Case(peers.ultrafeedback),
    "grpo_dr.py": Case(peers.questions),
    "grpo_lora.py": Case(peers.deepmath, {"rewards": [{"name": "math"}, *own("brevity")]}),
    "grpo_sequence.yaml": Case(peers.gsm8k),
    "ipo.sh": Case(peers.ultrafeedback),
    "kto.py": Case(peers.kto_mix),
    "ppo.py": Case(peers.tldr),
    "ppo_sentiment.py": Case(peers.imdb, {"rewards": own("longest"), "data.prompt": "{text}", "data.chat": True}),
    "reward.py": Case(peers.implicit),
    "rloo.py": Case(peers.ultrafeedback_prompt, {"train.learning_rate": 1e-6, "rewards": own("longest")}),
    "sft.yaml": Case(peers.capybara),
    "dapo.sh": Case(peers.verl("math_dapo"), {}, "dapo-math-17k.parquet"),
    "gsm8k_grpo.sh": Case(peers.verl("openai/gsm8k"), {}, "gsm8k/train.parquet"),
    "ppo.sh": Case(peers.verl("math"), {}, "math/train.parquet"),
    "reinforce_plus_plus.sh": Case(peers.verl("mine"), {"rewards": own("score")}, "a.parquet"),
    "rloo.yaml": Case(peers.verl("openai/gsm8k"), {}, "gsm8k.parquet"),
}


THEIRS = json.loads((HERE / "first_steps_trl_1_16.json").read_text())["steps"]
OF_DR = [*own("right_answer"), {"function": f"{REWARDS}:longest", "weight": 0.2}]
SAME: dict[str, dict[str, Any]] = {
    "cispo.sh": {},
    "dpo.py": {"reference": {"path": "reference"}},
    "grpo_dr.py": {"train.minibatches": 1, "train.epochs": 1, "rewards": OF_DR},
    "grpo_lora.py": {},
    "grpo_sequence.yaml": {},
    "ipo.sh": {},
    "kto.py": {},
    "reward.py": {"model.path": "scorer"},
    "rloo.py": {},
    "sft.yaml": {},
}
"""The changes that first_steps_of_trl.py makes to a script. None has adapters: their initial weights are random."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    made = {"policy": peers.policy, "reference": partial(peers.policy, seed=2), "scorer": peers.scorer}
    return {name: str(make(folder / name)) for name, make in made.items()}


def here(settings: dict[str, Any], case: Case, models: dict[str, str], rows: int) -> dict[str, Any]:
    """Return the replacements on this machine for what the file names."""
    train = str(peers.write_rows(Path(case.data), case.row, rows))
    changes: dict[str, Any] = {"model.path": models["policy"], "data.train": train, "output": "run"}
    changes |= {"rollout.engine": "local", "report_to": [], "model.device": "cpu"}
    changes |= {"data.split": "train", "data.eval_split": "test"}
    changes |= {"data.eval": train} if isinstance(settings["data"].get("eval"), str) else {}
    changes |= {"critic.path": models["scorer"]} if "path" in settings.get("critic", {}) else {}
    changes |= {"train.prompts_per_step": min(rows, settings["train"]["prompts_per_step"])}
    rewards = [one | {"model": models["scorer"]} if "model" in one else one for one in settings.get("rewards", [])]
    return changes | ({"rewards": rewards} if rewards else {}) | dict(case.more)


def first_step(changes: dict[str, Any]) -> dict[str, float]:
    """Take the first step of run.yaml, and return the run's metrics."""
    resolved = load_config("run.yaml", changes)
    with RunStore.create(Path("run"), to_yaml(resolved)) as store, ExitStack() as resources:
        run = set_up(resolved, store, TerminalView(quiet=True), resources)
        if isinstance(run.feed, SampledFeed):
            run.feed.generator = replace(run.feed.generator, sampler=Given(resolved.config.model.path))
        data = run.feed.take(1, version=0)
        _, log = train_step(run.trainer, data.experience, 1)
        log.add(data.metrics)
        return log.reduce()


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Return a function that writes run.yaml and the file of rewards to the working folder."""
    monkeypatch.chdir(tmp_path)
    Path(REWARDS).write_text(WRITTEN)

    def write(path: Path) -> dict[str, Any]:
        conversion = convert(path, rows=ROWS)
        Path("run.yaml").write_text(conversion.text)
        return dict(conversion.settings)

    return write


QUICK = ("grpo_lora.py", "reward.py", "dapo.sh")
"""The files whose first step is taken in `make test`: with adapters, with a model beside the policy, and of each
library. The first steps of the others are those of TRL (`SAME`), or have the settings of one of these."""


@pytest.mark.parametrize(
    "path", few(FILES, *(path for path in FILES if path.name in QUICK)), ids=lambda path: path.name
)
def test_a_converted_file_takes_a_first_step(path, models, written):
    told = first_step(here(written(path), CASES[path.name], models, 16))
    assert math.isfinite(told["loss"])
    assert told["grad_norm"] > 0


@pytest.mark.parametrize("name", SAME)
def test_the_first_step_is_that_of_trl(name, models, written):
    """Compare loss and gradient norm with TRL's first step, on the same rows, completions and float32 weights."""
    settings = written(HERE / "trl" / name)
    case = CASES[name]._replace(row=ROWS_OF_TRL.get(name, CASES[name].row))
    changes = here(settings, case, models, settings["train"]["prompts_per_step"])
    same = {
        key: {"path": models[value["path"]]} if key == "reference" else models.get(str(value), value)
        for key, value in SAME[name].items()
    }
    changes |= {"model.precision": "float32", "lora": None, "data.eval_fraction": 0, "data.eval": None, **same}
    told = first_step(changes)
    assert told["loss"] == pytest.approx(THEIRS[name]["loss"], rel=1e-4, abs=1e-5)
    assert told["grad_norm"] == pytest.approx(THEIRS[name]["grad_norm"], rel=1e-4)
