"""Make the model that the recipe starts with, in seconds: a tiny Llama trained on games of a forgetful player.

python recipes/guess_a_number/start.py        writes model/ and rows.jsonl next to this file
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
from game import NUMBERS, best_score, forgetful_game  # noqa: E402, F401
from tiny_words import SPECIAL, example, word_tokenizer  # noqa: E402

WORDS = (*SPECIAL, "guess", "higher", "lower", ">", *map(str, NUMBERS))
TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}<eos>{% else %} > {% endif %}{% endfor %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with one token for each word."""
    return word_tokenizer(WORDS, TEMPLATE, spaced=True)


def demonstration(index: int, rounds: Sequence[tuple[str, str]]) -> Example:
    """A game as a demonstration. Its guesses are imitated."""
    pieces: list[tuple[Sequence[str], bool]] = [(["guess", ">"], False)]
    for guess, answer in rounds:
        pieces += [([guess, "<eos>"], True), ([answer, ">"] if answer else [], False)]
    return example(index, pieces, WORDS)


def make(folder: Path, *, seed: int = 0) -> Path:
    """Make the model, as a Hugging Face folder, and the rows."""
    recipe, words = TinyRecipe(demonstrations=2_000, steps=150), tokenizer()
    model = build_model(words, recipe, seed=seed)
    dice = random.Random(seed)
    shown = [demonstration(index, forgetful_game(dice)) for index in range(recipe.demonstrations)]
    imitate(model, shown, recipe, seed=seed)
    model.save_pretrained(folder / "model")
    words.save_pretrained(folder / "model")
    (folder / "rows.jsonl").write_text((json.dumps({"prompt": "guess"}) + "\n") * 128)
    return folder


if __name__ == "__main__":
    make(HERE)
