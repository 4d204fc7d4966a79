"""The settings of a project, with their comments in config.yaml.

The algorithm is the advisor's first recommendation for the answers. It comes with batch sizes and learning rates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml

from posttrain.config.text import write_value
from posttrain.lab.advise.advisor import advise
from posttrain.lab.init.questions import Answers
from posttrain.lab.init.samples import WORD

COLUMN = 58
"""Column where comments begin. After long lines they begin further right."""
SAMPLED = ("answers", "function", "environment")
"""Kinds of data for which the model samples the answers."""
_MACHINES: Mapping[str, Mapping[str, Any]] = {"cpu": {"gpus": 0}, "gpu": {"gpus": 1}, "auto": {}}
_GIVEN = ("pairs", "thumbs", "demonstrations")
"""Kinds of data with given answers, for which nothing is sampled."""
CHAT = "chat.jinja"
"""Chat template file for the tiny model in several turns. The model has no chat template of its own."""
ANSWER_LENGTH = 256
"""Length of an answer to the sample's prompts, or of a turn, in tokens."""
_REASONS = 2
"""Number of reasons to show. `posttrain advise` shows all."""


class Recommendation(NamedTuple):
    algorithm: str
    settings: Mapping[str, Any]
    """Settings from the advisor's rules that differ from the defaults."""
    reason: str
    config: Mapping[str, Any]
    """The advisor's config: batch sizes, learning rate, and adapters if any."""


def recommend(answers: Answers) -> Recommendation:
    """Return the advisor's first recommendation for the answers."""
    facts: dict[str, Any] = {"data": answers.data, "answer_length": ANSWER_LENGTH, **_MACHINES[answers.where]}
    facts |= {"online": False} if answers.data in _GIVEN else {}
    facts |= {} if answers.goal == "balance" else {"priority": answers.goal}
    facts |= {} if answers.tiny else {"model": answers.model}
    best = advise(facts).best
    assert best is not None, "there is something to learn from in every answer"
    why = "; ".join(reason.text for reason in best.reasons[:_REASONS])
    return Recommendation(best.algorithm, best.settings, f"{why[0].upper()}{why[1:]}.", yaml.safe_load(best.config))


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of the config: a setting, or a section with several settings."""

    key: str
    value: Any
    comment: str = ""


def lines_of(answers: Answers, found: Recommendation) -> list[Line]:
    """Return all lines of a project's config."""
    models = "put a folder or a Hugging Face name here" if answers.tiny else "a folder or a Hugging Face name"
    return [
        Line(key="model", value=_model(answers), comment=models),
        *_adapters(answers, found),
        Line(
            key="algorithm",
            value={"name": found.algorithm, **found.settings},
            comment=f"`posttrain explain {found.algorithm}`",
        ),
        Line(key="data", value={"train": "train.jsonl", "eval": "eval.jsonl"}, comment="eval: never trained on"),
        *_environment(answers, found),
        *_rewards(answers),
        *_sampling(answers, found),
        Line(key="train", value=_train(answers, found), comment=""),
        _evaluation(answers),
        Line(key="checkpoint", value={"every": 50}, comment="in steps; `posttrain resume` continues from there"),
        Line(key="seed", value=0, comment="the same seed, the same run"),
    ]


def settings_of(lines: list[Line]) -> dict[str, Any]:
    """Return the lines as plain data."""
    return {line.key: line.value for line in lines}


def config_text(lines: list[Line], title: str) -> str:
    """Return the text of config.yaml: a line per section, and a line per setting in `train`."""
    text = [f"# {title}"]
    for line in lines:
        if line.key == "train":
            text += [
                "train:",
                *(_written(f"  {name}", value, _TRAIN.get(name, "")) for name, value in line.value.items()),
            ]
        else:
            text.append(_written(line.key, line.value, line.comment))
    return "\n".join(text) + "\n"


_TRAIN = {
    "steps": "",
    "prompts_per_step": "rows of the data in each step",
    "learning_rate": "the first setting to tune: posttrain sweep",
    "minibatches": "updates per step",
    "schedule": "decays to 0 at the end",
    "warmup_steps": "rises from 0 at the start",
}


def _written(key: str, value: Any, comment: str) -> str:
    text = f"{key}: {write_value(value)}"
    return f"{text:<{COLUMN - 2}}  # {comment}" if comment else text


def _model(answers: Answers) -> Any:
    path = f"tiny:{'reverse' if answers.data in SAMPLED else 'sort'}" if answers.tiny else answers.model
    device = {"auto": None, "cpu": "cpu", "gpu": "cuda"}[answers.where]
    template = CHAT if answers.data == "environment" and answers.tiny else None
    given = {"path": path, "device": device, "chat_template": template}
    said = {name: value for name, value in given.items() if value is not None}
    return said if len(said) > 1 else path


def _adapters(answers: Answers, found: Recommendation) -> list[Line]:
    lora = None if answers.tiny else found.config.get("lora")
    return [] if lora is None else [Line(key="lora", value=lora, comment="adapters, not all weights; null trains all")]


def _environment(answers: Answers, found: Recommendation) -> list[Line]:
    if answers.data != "environment":
        return []
    own = {"function": f"environment.py:{'Word' if answers.tiny else 'Game'}"}
    value = own if answers.tiny else {**found.config["environment"], **own}
    return [Line(key="environment", value=value, comment="your program; answers each turn of the model")]


def _rewards(answers: Answers) -> list[Line]:
    match answers.data:
        case "answers":
            verifier = "exact_match" if answers.tiny else "math"
            says = "1 if the answer equals the row's" if answers.tiny else "1 if the value equals the row's"
            return [
                Line(key="rewards", value=[{"name": verifier}], comment=says),
                Line(key="check", value=[{"function": "reward.py:check"}], comment="a second look; never trained on"),
            ]
        case "function":
            return [Line(key="rewards", value=[{"function": "reward.py:score"}], comment="yours; try it: reward test")]
        case "environment":
            return [Line(key="rewards", value=[{"name": "environment"}], comment="its reward for all turns")]
    return []


def _sampling(answers: Answers, found: Recommendation) -> list[Line]:
    if answers.data not in SAMPLED:
        return []
    in_turns = answers.data == "environment"
    tiny = {"group_size": 8, "max_completion_length": WORD + 2, **({"max_turns": 2} if in_turns else {})}
    value = tiny if answers.tiny else found.config["sampling"]
    comment = "tokens per turn" if in_turns else "answers per prompt; tokens of the longest"
    return [Line(key="sampling", value=value, comment=comment)]


def _train(answers: Answers, found: Recommendation) -> Mapping[str, Any]:
    """Return the advisor's `train` section, or one with which a tiny model learns its task from scratch in a minute."""
    if not answers.tiny:
        return found.config["train"]
    if answers.data in SAMPLED:
        course = {"schedule": "linear", "warmup_steps": 10}
        return {"steps": 100, "prompts_per_step": 32, "learning_rate": 4e-4, **course}
    return {"steps": 40, "prompts_per_step": 32, "learning_rate": 5e-4}


def _evaluation(answers: Answers) -> Line:
    sampled = {"prompts": 96 if answers.tiny else 64, "samples": 4} if answers.data in SAMPLED else {}
    value = {**sampled, "every": 20}
    return Line(key="evaluation", value=value, comment="on eval rows: before, after and every 20 steps")
