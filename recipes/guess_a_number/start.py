"""Makes the model that the recipe starts with, in seconds: a tiny Llama that has seen games of a forgetful player.

python recipes/guess_a_number/start.py        writes model/ and rows.jsonl beside this file
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from posttrain.tasks.base import TinyRecipe
from posttrain.tasks.tiny import build_model, imitate
from posttrain.types import Example

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from game import GUESSES, NUMBERS, best_score  # noqa: E402, F401

WORDS = ("<pad>", "<bos>", "<eos>", "<unk>", "guess", "higher", "lower", ">", *map(str, NUMBERS))
TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}<eos>{% else %} > {% endif %}{% endfor %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per word."""
    found = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    found.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    names = {name: f"<{name.removesuffix('_token')}>" for name in ("pad_token", "bos_token", "eos_token", "unk_token")}
    made = PreTrainedTokenizerFast(tokenizer_object=found, **names)
    made.chat_template = TEMPLATE
    return made


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
