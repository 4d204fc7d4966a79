"""README.md of a project: what to type, what to expect, how to put one's own data in its place."""

from __future__ import annotations

import importlib.resources
import json
from string import Template
from typing import NamedTuple

from posttrain.lab.init.questions import QUESTIONS, Answers
from posttrain.lab.init.samples import Sample
from posttrain.lab.init.settings import SAMPLED, Recommendation


class _Words(NamedTuple):
    """What is said of one kind of data."""

    shows: str
    """What a row of the sample is."""
    tiny: str
    """What the tiny model learns from it."""
    own: str
    """How to put one's own data in."""


_WORDS = {
    "answers": _Words(
        shows="a problem and its right answer",
        tiny="It spells words backwards: about 16% of them right at first, and two to three times as many after these "
        "100 steps, on 96 words that it has never seen. More words and more steps take it further.",
        own="`train.jsonl` and `eval.jsonl` have a row for each problem: `prompt` (text, or chat messages) and\n"
        "`answer`. Other names of columns are recognised, or named: "
        '`data: {prompt: "{Body} {Question}", answer: Answer}`.\n\n'
        "How an answer is judged stands under `rewards`: `exact_match` compares texts, `math` values; `gsm8k`,\n"
        "`multiple_choice` and `code` know their forms. `reward.py` is a second look at the same answers, which\n"
        "training never sees: write there what would convince you that an answer is right, in another way.",
    ),
    "function": _Words(
        shows="a prompt; what an answer is worth is said by `reward.py`",
        tiny="It spells words backwards: the mean score of 96 words that it has never seen rises from about 0.67 to "
        "0.85, and three times as many of them come out right. The run may tell of an alarm about length: answers of "
        "another length than the word's come to be worth less here, which is meant. With a reward of your own, look.",
        own="`train.jsonl` and `eval.jsonl` have a row for each `prompt` (text, or chat messages). Every other column\n"
        "goes to `score` in `reward.py` as an argument. Write there what an answer is worth, any number; give part of\n"
        "it to answers that are nearly good, or a model that is never good learns nothing.\n\n"
        "`posttrain reward audit config.yaml` then tries to game it before a model does.",
    ),
    "pairs": _Words(
        shows="a prompt, the answer that was preferred (`chosen`) and the other one (`rejected`)",
        tiny="Answers with letters from a to e were preferred: the share of held-out pairs that it puts in the right "
        "order rises from about four in ten to three in four and more.",
        own="`train.jsonl` and `eval.jsonl` have a row for each pair: `prompt`, `chosen`, `rejected`, as text or as\n"
        "chat messages. The data of UltraFeedback, HH-RLHF and Orca is read as it is. `posttrain data check` says how\n"
        "long the answers of both kinds are: where the chosen ones are simply longer, length is what will be learned.",
    ),
    "thumbs": _Words(
        shows="a prompt, one answer (`completion`) and whether it was liked (`label`)",
        tiny="Answers with letters from a to e were liked: how well it tells held-out answers that were liked from "
        "others (AUC) rises from below one half to about seven tenths.",
        own="`train.jsonl` and `eval.jsonl` have a row for each answer: `prompt`, `completion`, `label` (true or\n"
        "false). Both labels have to be there; they need not be equally frequent.",
    ),
    "demonstrations": _Words(
        shows="a prompt with a good answer",
        tiny="It imitates words with letters from a to e: the loss on held-out answers falls from about 6 to about "
        "2.5 nats per token.",
        own="`train.jsonl` and `eval.jsonl` have a row for each example: `messages` (a conversation), or `prompt` and\n"
        "`completion`. The forms of Alpaca, ShareGPT and OpenAI are read as they are. Only the answers are trained.",
    ),
}
_REAL = (
    "So few rows show that everything works, for which `train.steps=2 train.warmup_steps=0` is enough; they do not\n"
    "make a better model. Put your own data in before you judge what it learns."
)
_TESTS = (
    "`reward test` shows that the reward tells\nright from wrong, and whether this model will learn anything from it. "
)
_MEMORY = "`posttrain plan config.yaml` says beforehand whether it fits and what it will take.\n"


def commands_of(answers: Answers) -> tuple[str, ...]:
    """What to type in the project's folder, in its order."""
    tried = ("posttrain reward test config.yaml",) if answers.data in SAMPLED else ()
    return ("posttrain data check train.jsonl", *tried, "posttrain train config.yaml")


def readme_text(answers: Answers, found: Recommendation, rows: Sample) -> str:
    """The page."""
    words = _WORDS[answers.data]
    kind = next(question for question in QUESTIONS if question.key == "data").choices[answers.data]
    page = (importlib.resources.files("posttrain.lab.init") / "templates" / "README.md").read_text(encoding="utf-8")
    return Template(page).substitute(
        name=answers.folder.resolve().name,
        kind=kind[0].upper() + kind[1:],
        model="the built-in tiny model" if answers.tiny else f"the model `{answers.model}`",
        algorithm=found.algorithm,
        reason=found.reason,
        commands="\n".join(commands_of(answers)),
        tests=_TESTS if answers.data in SAMPLED else "",
        memory="" if answers.tiny else _MEMORY,
        rows=len(rows.train),
        held_out=len(rows.eval),
        shows=words.shows,
        row=json.dumps(rows.train[0]),
        expectation=f"The tiny model reads letters, one token each, and takes a minute on a CPU. {words.tiny}"
        if answers.tiny
        else _REAL,
        own=words.own,
    )
