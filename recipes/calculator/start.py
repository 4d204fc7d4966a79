"""Make the model that the recipe starts with, in a minute: a tiny Llama that mostly answers without the calculator.

python recipes/calculator/start.py        writes model/, train.jsonl and eval.jsonl next to this file
"""

from __future__ import annotations

import json
import random
import sys
from itertools import product
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from posttrain.tasks.base import TinyRecipe
from posttrain.tasks.tiny import build_model, imitate
from posttrain.types import Example

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from tiny_words import CALL, CALLS_TEMPLATE, SPECIAL, example, word_tokenizer  # noqa: E402

FACTORS, HELD_OUT = range(10, 100), 512
CALLED = 0.2
"""Share of the demonstrations that call the calculator."""
CALLING = (CALL, '{"name": "calculator", "arguments": {"expression": "', '"}}', "</tool_call>")
WORDS = (*SPECIAL, *CALLING, "calculator", *"0123456789*= ")


def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with one token for each character, and one for each fixed piece of a call."""
    return word_tokenizer(WORDS, CALLS_TEMPLATE)


def problems() -> list[dict[str, str]]:
    """All products of two two-digit numbers, in a fixed random order."""
    rows = [{"prompt": f"{one}*{other}", "answer": str(one * other)} for one, other in product(FACTORS, FACTORS)]
    random.Random(0).shuffle(rows)
    return rows


def demonstration(index: int, row: dict[str, str], *, calls: bool) -> Example:
    """A demonstration with the right answer, given directly or with a call of the calculator."""
    begin, name, end, done = CALLING
    given, drawn = ["calculator", " ", *row["prompt"], "="], [*row["answer"], "<eos>"]
    pieces = [(given, False), (drawn, True)]
    if calls:
        call = [begin, name, *row["prompt"], end, done, "<eos>"]
        pieces = [(given, False), (call, True), ([*row["answer"], "="], False), (drawn, True)]
    return example(index, pieces, WORDS)


def best_score() -> float:
    """The score of the optimal policy, which always calls the calculator and repeats its result."""
    return 1.0


def make(folder: Path, *, seed: int = 0) -> Path:
    """Make the model, as a Hugging Face folder, and the rows. The model never sees held-out rows."""
    held_out, shown = problems()[:HELD_OUT], problems()[HELD_OUT:]
    recipe, words, dice = (
        TinyRecipe(demonstrations=len(shown), steps=400, learning_rate=3e-3),
        tokenizer(),
        random.Random(seed),
    )
    model = build_model(words, recipe, seed=seed)
    examples = [demonstration(index, row, calls=dice.random() < CALLED) for index, row in enumerate(shown)]
    imitate(model, examples, recipe, seed=seed)
    model.save_pretrained(folder / "model")
    words.save_pretrained(folder / "model")
    for name, rows in (("train", shown), ("eval", held_out)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


if __name__ == "__main__":
    make(HERE)
