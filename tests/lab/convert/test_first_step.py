"""Every converted file takes a first step, on tiny models and rows in the form of its data set.

Only models, places of data, the number of prompts and lengths differ from the file that `convert` wrote, and what a
machine without a card has no use for: vLLM and trackers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
from tests.lab.convert import peers
from tests.lab.convert.test_convert import FILES, ROWS

from posttrain.config import Resolved, load_config, to_yaml
from posttrain.lab.convert import convert
from posttrain.report.terminal import TerminalView
from posttrain.store.run_store import RunStore
from posttrain.train.loop import train_step
from posttrain.train.setup import set_up

LENGTH = 12


class Case(NamedTuple):
    """What stands in the place of the data set, and what the top of the converted file asks to be decided."""

    row: Callable[[int], dict[str, Any]]
    more: dict[str, Any] = {}
    data: str = "rows.jsonl"


def brief(completions, **columns):
    return [-float(len(str(completion))) for completion in completions]


REWARDS = "my_rewards.py"
WRITTEN = """
def right_answer(completions, answer, **columns):
    return [float(right in str(text)) for text, right in zip(completions, answer)]

def brevity(completions, **columns):
    return [-float(len(str(text))) for text in completions]

def score(prompt, completion, reward_model, **row):
    return float(reward_model["ground_truth"] in completion)
"""
OWN = [{"function": f"{REWARDS}:brevity"}]
CASES = {
    "cispo.sh": Case(peers.deepmath),
    "dpo.py": Case(peers.ultrafeedback),
    "grpo_dr.py": Case(peers.questions),
    "grpo_lora.py": Case(peers.deepmath),
    "grpo_sequence.yaml": Case(peers.gsm8k),
    "ipo.sh": Case(peers.ultrafeedback),
    "kto.py": Case(peers.kto_mix),
    "ppo.py": Case(peers.tldr),
    "ppo_sentiment.py": Case(peers.imdb, {"rewards": OWN}),
    "reward.py": Case(peers.implicit),
    "rloo.py": Case(peers.ultrafeedback_prompt, {"train.learning_rate": 1e-6, "rewards": OWN}),
    "sft.yaml": Case(peers.capybara),
    "dapo.sh": Case(peers.verl("math_dapo"), {"algorithm.overlong_buffer": 4}, "dapo-math-17k.parquet"),
    "gsm8k_grpo.sh": Case(peers.verl("openai/gsm8k"), {}, "gsm8k/train.parquet"),
    "ppo.sh": Case(peers.verl("math"), {}, "math/train.parquet"),
    "reinforce_plus_plus.sh": Case(
        peers.verl("mine"), {"rewards": [{"function": f"{REWARDS}:score"}]}, "a.parquet"
    ),
    "rloo.yaml": Case(peers.verl("openai/gsm8k"), {}, "gsm8k.parquet"),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {"policy": str(peers.policy(folder / "policy")), "scorer": str(peers.scorer(folder / "scorer"))}


def here(settings: dict[str, Any], case: Case, models: dict[str, str], folder) -> dict[str, Any]:
    """What this machine has in the place of what the file names."""
    train = str(peers.write_rows(folder / case.data, case.row, 40))
    changes: dict[str, Any] = {"model.path": models["policy"], "data.train": train, "output": str(folder / "run")}
    changes |= {"rollout.engine": "local", "report_to": [], "model.device": "cpu"}
    changes |= {"data.split": "train", "data.eval_split": None} if "split" in settings["data"] else {}
    changes |= {"data.eval": train} if isinstance(settings["data"].get("eval"), str) else {}
    changes |= {"critic.path": models["scorer"]} if "path" in settings.get("critic", {}) else {}
    if "sampling" in settings:
        changes |= {"sampling.max_completion_length": LENGTH}
        changes |= {"train.prompts_per_step": min(16, settings["train"]["prompts_per_step"])}
    rewards = [reward | {"model": models["scorer"]} if "model" in reward else reward for reward in settings.get("rewards", [])]
    changes |= {"rewards": rewards} if rewards else {}
    return changes | case.more


def first_step(resolved: Resolved, folder) -> dict[str, float]:
    with RunStore.create(folder / "run", to_yaml(resolved)) as store, ExitStack() as resources:
        run = set_up(resolved, store, TerminalView(quiet=True), resources)
        data = run.feed.take(1, version=0)
        _, log = train_step(run.trainer, data.experience, 1)
        log.add(data.metrics)
        return log.reduce()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_converted_file_takes_a_first_step(path, models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / REWARDS).write_text(WRITTEN)
    conversion = convert(path, rows=ROWS)
    case = CASES[path.name]
    (tmp_path / "run.yaml").write_text(conversion.text)
    resolved = load_config("run.yaml", here(dict(conversion.settings), case, models, tmp_path))
    told = first_step(resolved, tmp_path)
    print(path.name, {k: v for k, v in told.items() if k.startswith(("loss", "grad", "reward"))})
    assert math.isfinite(told["loss"])
    assert told["grad_norm"] > 0
