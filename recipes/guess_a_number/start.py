"""Makes the model that the recipe starts with, in seconds: a tiny Llama that has seen games of a forgetful player.

python recipes/guess_a_number/start.py        writes model/ and rows.jsonl beside this file
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from posttrain.tasks.base import TinyRecipe
from posttrain.tasks.tiny import build_model, imitate
from posttrain.types import Example

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from game import GUESSES, NUMBERS, best_score  # noqa: E402, F401
from tiny_words import SPECIAL, word_tokenizer  # noqa: E402

WORDS = (*SPECIAL, "guess", "higher", "lower", ">", *map(str, NUMBERS))
TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}<eos>{% else %} > {% endif %}{% endfor %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per word."""
    return word_tokenizer(WORDS, TEMPLATE, spaced=True)


def games(dice: random.Random, count: int) -> list[Example]:
    """Games of a player who obeys the last answer and has forgotten those before it."""
    found = []
    for index in range(count):
        secret, possible, said, mask = dice.choice(NUMBERS), NUMBERS, ["guess", ">"], [False, False]
        for _ in range(GUESSES):
            guess = dice.choice(possible)
            said += [str(guess), "<eos>"]
            mask += [True, True]
            if guess == secret:
                break
            said += ["higher" if guess < secret else "lower", ">"]
            mask += [False, False]
            possible = [number for number in NUMBERS if (number > guess) == (secret > guess) and number != guess]
        ids = tuple(map(WORDS.index, said))
        found.append(Example(index=index, input_ids=ids, completion_mask=tuple(mask)))
    return found


def make(folder: Path, *, seed: int = 0) -> Path:
    """The model, as a Hugging Face folder, and the rows."""
    recipe, words = TinyRecipe(demonstrations=2_000, steps=150), tokenizer()
    model = build_model(words, recipe, seed=seed)
    imitate(model, games(random.Random(seed), recipe.demonstrations), recipe, seed=seed)
    model.save_pretrained(folder / "model")
    words.save_pretrained(folder / "model")
    (folder / "rows.jsonl").write_text((json.dumps({"prompt": "guess"}) + "\n") * 128)
    return folder


if __name__ == "__main__":
    make(HERE)
