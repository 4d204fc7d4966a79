"""Make the model that the recipe starts with, in a minute: a tiny Llama that runs a program and mostly ignores the
output.

python recipes/self_correction/start.py        writes model/, train.jsonl and eval.jsonl next to this file
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from posttrain.tasks.base import TinyRecipe
from posttrain.tasks.tiny import build_model, imitate
from posttrain.types import Example

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from sums import FORMS, best_score, rows, value  # noqa: E402, F401
from tiny_words import CALL, CALLS_TEMPLATE, SPECIAL, example, word_tokenizer  # noqa: E402

HELD_OUT = 256
CAREFUL = 0.4
"""Share of the demonstrations whose answer depends on the printed value. The others choose an expression at random."""
CALLING = (CALL, '{"name": "python", "arguments": {"code": "', "print(", ')"}}', "</tool_call>")
WORDS = (*SPECIAL, *CALLING, "python", "\n", *"0123456789+*= ")


def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with one token for each character, and one for each fixed piece of a call."""
    return word_tokenizer(WORDS, CALLS_TEMPLATE)


def better(tried: str, number: int, digits: Sequence[str]) -> list[str]:
    """The possible answers after a trial: the same expression if its value was right, or else the expressions whose
    values differ in the needed direction."""
    found = [form.format(*digits) for form in FORMS]
    missing = number - value(tried)
    return [one for one in found if (value(one) - value(tried)) * missing > 0] if missing else [tried]


def demonstration(index: int, row: dict[str, str], dice: random.Random) -> Example:
    """A demonstration: a random program, its output, and an expression, which is mostly random, too."""
    digits, number = row["prompt"].split()[:3], int(row["prompt"].split()[3])
    tried, said = (dice.choice(FORMS).format(*digits) for _ in range(2))
    if dice.random() < CAREFUL:
        said = dice.choice(better(tried, number, digits))
    begin, name, opened, closed, done = CALLING
    pieces = [
        (["python", " ", *row["prompt"], "="], False),
        ([begin, name, opened, *tried, closed, done, "<eos>"], True),
        ([*str(value(tried)), "\n", "="], False),
        ([*said, "<eos>"], True),
    ]
    return example(index, pieces, WORDS)


def make(folder: Path, *, seed: int = 0) -> Path:
    """Make the model, as a Hugging Face folder, and the rows. The model never sees held-out rows."""
    held_out, shown = rows()[:HELD_OUT], rows()[HELD_OUT:]
    recipe = TinyRecipe(demonstrations=4 * len(shown), steps=800, learning_rate=3e-3)
    words, dice = tokenizer(), random.Random(seed)
    model = build_model(words, recipe, seed=seed)
    examples = [demonstration(index, row, dice) for index, row in enumerate(4 * shown)]
    imitate(model, examples, recipe, seed=seed)
    model.save_pretrained(folder / "model")
    words.save_pretrained(folder / "model")
    for name, given in (("train", shown), ("eval", held_out)):
        lines = (json.dumps(row | {"prompt": [{"role": "user", "content": row["prompt"]}]}) + "\n" for row in given)
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return folder


if __name__ == "__main__":
    make(HERE)
