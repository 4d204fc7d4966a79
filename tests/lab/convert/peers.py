"""Stand-ins that let a converted config run here: tiny models in place of large ones, and rows in the form of the data
sets that the scripts name, with all their columns."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import torch
from tests.tiny import tiny_model, tiny_tokenizer
from transformers import LlamaConfig, LlamaForSequenceClassification

CHARACTERS = string.ascii_letters + string.digits + string.punctuation + " \n"
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {% if message['role'] == 'assistant' %}{% generation %}"
    "{{ message['content'] }}{{ eos_token }}{% endgeneration %}{% else %}{{ message['content'] }}{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
"""A chat template with the marks that TRL needs to train only the assistant's turns."""


def policy(folder: Path, *, seed: int = 0) -> Path:
    """Write a random Llama with a chat template."""
    tiny_model(folder, seed=seed, characters=CHARACTERS, max_position_embeddings=32768, initializer_range=0.2)
    tokenizer = tiny_tokenizer(CHARACTERS)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def scorer(folder: Path, *, seed: int = 1) -> Path:
    """Write a random Llama with a scalar head, for reward models and critics."""
    tokenizer = tiny_tokenizer(CHARACTERS)
    tokenizer.chat_template = TEMPLATE
    shape = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32768, num_labels=1, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(seed)
    LlamaForSequenceClassification(shape).save_pretrained(folder)  # pyright: ignore[reportArgumentType]
    tokenizer.save_pretrained(folder)
    return folder


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


# --- rows, in the columns of the data set with that name --------------------------------------------------------------


def deepmath(number: int) -> dict[str, Any]:
    """A row of trl-lib/DeepMath-103K."""
    return {"prompt": [user(f"What is {number} + 1?")], "solution": f"${number + 1}$"}


def questions(number: int) -> dict[str, Any]:
    """A row of the script's own file, before its `map`."""
    return {"question": f"What is {number} + 1?", "answer": str(number + 1)}


def gsm8k(number: int) -> dict[str, Any]:
    """A row of openai/gsm8k."""
    return {"question": f"What is {number} + 1?", "answer": f"One more than {number}.\n#### {number + 1}"}


def ultrafeedback(number: int) -> dict[str, Any]:
    """A row of HuggingFaceH4/ultrafeedback_binarized."""
    prompt, good, bad = f"Say {number}.", f"It is {number}.", "No" + "o" * (number % 5)
    return {
        "prompt": prompt, "prompt_id": f"{number:064x}", "chosen": [user(prompt), assistant(good)],
        "rejected": [user(prompt), assistant(bad)], "messages": [user(prompt), assistant(good)],
        "score_chosen": 8.0, "score_rejected": 4.5,
    }  # fmt: skip


def ultrafeedback_of_trl(number: int) -> dict[str, Any]:
    """The same row in the form that TRL 1.16 expects: conversations in all three columns."""
    row = ultrafeedback(number)
    return {"prompt": row["chosen"][:1], "chosen": row["chosen"][1:], "rejected": row["rejected"][1:]}


def implicit(number: int) -> dict[str, Any]:
    """A row of trl-lib/ultrafeedback_binarized: the prompt is only in the two conversations."""
    row = ultrafeedback(number)
    return {name: row[name] for name in ("chosen", "rejected", "score_chosen", "score_rejected")}


def capybara(number: int) -> dict[str, Any]:
    """A row of trl-lib/Capybara."""
    talk = [user(f"Count to {number}."), assistant("1, 2"), user("On."), assistant(f"3, {number}")]
    return {"source": "GPT4LLM", "messages": talk, "num_turns": 2}


def kto_mix(number: int) -> dict[str, Any]:
    """A row of trl-lib/kto-mix-14k."""
    return {
        "prompt": [user(f"Say {number}.")], "completion": [assistant(f"It is {number}.")], "label": number % 3 > 0
    }  # fmt: skip


def tldr(number: int) -> dict[str, Any]:
    """A row of trl-lib/tldr."""
    return {"prompt": f"SUBREDDIT: r/n\nPOST: I have {number} cats.\nTL;DR:", "completion": f" {number} cats"}


def imdb(number: int) -> dict[str, Any]:
    """A row of stanfordnlp/imdb."""
    return {"text": f"I saw it {number} times.", "label": number % 2}


def ultrafeedback_prompt(number: int) -> dict[str, Any]:
    """A row of trl-lib/ultrafeedback-prompt."""
    return {"prompt": [user(f"Say {number}.")]}


def verl(source: str) -> Callable[[int], dict[str, Any]]:
    """Return a function that makes rows like those of verl's examples/data_preprocess."""

    def row(number: int) -> dict[str, Any]:
        return {
            "data_source": source, "prompt": [user(f"What is {number} + 1?")], "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(number + 1)},
            "extra_info": {"split": "train", "index": number, "answer": f"#### {number + 1}", "question": "?"},
        }  # fmt: skip

    return row


def answer_to(prompt: str, number: int) -> tuple[str, bool]:
    """Return the completion for a place in the group, and whether it ends. Every second one is right, and lengths vary.
    A wrong one in the fourth place is truncated."""
    found = re.search(r"\d+", prompt)
    asked = int(found[0]) if found else 0
    if (asked + number) % 2 == 0:
        return f"<think>{'so ' * (number // 2)}</think> \\boxed{{{asked + 1}}} #### {asked + 1}", True
    return "no" + "o" * ((3 * asked + 5 * number) % 7), number != 3


def write_rows(path: Path, row: Callable[[int], dict[str, Any]], count: int) -> Path:
    """Write rows as JSON lines, or as Parquet if the file name ends in .parquet."""
    rows = [row(number) for number in range(1, count + 1)]
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path
