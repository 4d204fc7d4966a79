"""The definition of a task: a stream of problems, each with one right answer, in two splits that share no prompt."""

from __future__ import annotations

import hashlib
import random
import string
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from posttrain.errors import DataError

ALPHABET = string.ascii_lowercase + string.digits + "+-*=<>:, "
"""All characters of all built-in tasks: the vocabulary of the tiny models. Each model can therefore read all tasks."""

SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")
CONTEXT_LENGTH = 128

FORMS: Mapping[str, Mapping[str, int]] = {"tiny": {}, "tiny-moe": {"experts": 16}, "tiny-wide": {"heads": 2}}
"""The forms of the tiny models, by the first half of their names: the differences from the task's recipe. `tiny-wide`
has heads of size 32 instead of 16, the smallest head size that a vLLM server supports."""
EVAL_SHARE = 5
"""One in this many problems is held out."""
PATIENCE = 2_000
"""Number of consecutive draws without a new problem after which a task counts as exhausted."""

SplitName = Literal["train", "eval"]


class Problem(NamedTuple):
    prompt: str
    answer: str


@dataclass(frozen=True, kw_only=True)
class TinyRecipe:
    """A tiny Llama or mixture of experts, and the few demonstrations that it memorizes.

    The demonstrations are too few to show the whole skill: the accuracy on new problems rises and then stays constant,
    however long the training continues. The baseline is therefore weak on purpose, in greedy and sampled answers alike.
    """

    demonstrations: int
    steps: int = 200
    rows_per_step: int = 64
    learning_rate: float = 1e-3
    hidden_size: int = 64
    intermediate_size: int = 256
    layers: int = 2
    heads: int = 4
    experts: int = 0
    """Number of experts per layer; 0 for a dense model. Each token goes to a quarter of the experts, which together are
    as wide as the dense layer."""

    @property
    def model_type(self) -> str:
        return "qwen3_moe" if self.experts else "llama"

    def shape(self, vocab_size: int = len(SPECIAL_TOKENS) + len(set(ALPHABET))) -> dict[str, Any]:
        """The sizes of the model, under their names in config.json."""
        sizes: dict[str, Any] = {
            "vocab_size": vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "max_position_embeddings": CONTEXT_LENGTH,
            "tie_word_embeddings": True,
        }
        if not self.experts:
            return sizes
        chosen = self.experts // 4
        return sizes | {
            "head_dim": self.hidden_size // self.heads,
            "num_experts": self.experts,
            "num_experts_per_tok": chosen,
            "moe_intermediate_size": self.intermediate_size // chosen,
        }


@dataclass(frozen=True, kw_only=True)
class Task:
    """A family of small problems with checkable answers.

    Only the hash of its prompt decides to which split a problem belongs. Training rows and held-out rows are therefore
    disjoint, whatever the seeds are.
    """

    name: str
    draw: Callable[[random.Random, int], Problem]
    """Function that draws a problem of a given difficulty. Its docstring is the description of the task."""
    difficulty: int
    """The default difficulty, for `task:NAME`; `task:NAME:8` asks for difficulty 8."""
    difficulties: range
    unit: str
    """The unit of the difficulty, such as letters."""
    longest_answer: Callable[[int], int]
    """Length of the longest answer at a difficulty, in characters."""
    rewards: tuple[Mapping[str, Any], ...] = field(default=({"name": "exact_match"},))
    """Entries for `rewards:`. Each can judge the answers, and the first one is meant for training."""
    tiny: TinyRecipe
    """The tiny model `tiny:NAME`."""

    def in_form(self, form: str) -> Task:
        """The same task with the model `FORM:NAME` instead of `tiny:NAME`."""
        return replace(self, tiny=replace(self.tiny, **FORMS[form]))

    @property
    def summary(self) -> str:
        return (self.draw.__doc__ or "").strip()

    @property
    def max_completion_length(self) -> int:
        """Number of tokens for the longest answer and EOS, plus one token, so that an answer can be too long."""
        return self.longest_answer(self.difficulty) + 2

    def rows(self, n: int, *, seed: int = 0, split: str = "train") -> list[dict[str, Any]]:
        """`n` different problems as rows with the columns prompt and answer. A longer list begins with a shorter one.

        Raises `DataError` if the task has fewer problems, and for a split other than "train" and "eval".
        """
        if split not in ("train", "eval"):
            raise DataError(given=f"task {self.name} has no split {split!r}", allowed="train or eval")
        dice = random.Random(f"{self.name}:{self.difficulty}/{split}/{seed}")
        found: dict[str, str] = {}
        for problem in self._new_problems(dice, split, found):
            if len(found) == n:
                break
            found[problem.prompt] = problem.answer
        if len(found) < n:
            raise DataError(
                given=f"{n} {split} rows of {self.name} with {self.difficulty} {self.unit}, which has no more than "
                f"{len(found)} different ones",
                allowed=f"up to {len(found)} rows",
                fix=f"Set data.max_rows = {len(found)}, or ask for harder ones: "
                f"task:{self.name}:{self.difficulty + 1}.",
            )
        return [{"prompt": prompt, "answer": answer} for prompt, answer in found.items()]

    def _new_problems(self, dice: random.Random, split: str, known: Container[str]) -> Iterator[Problem]:
        """Yield new problems of the split until none has come up for `PATIENCE` draws."""
        misses = 0
        while misses < PATIENCE:
            problem = self.draw(dice, self.difficulty)
            misses += 1
            if split_of(problem.prompt) == split and problem.prompt not in known:
                misses = 0
                yield problem


def split_of(prompt: str) -> SplitName:
    """The split that a problem belongs to, for every seed.

    >>> split_of("dbca>"), split_of("dbcb>")
    ('train', 'train')
    """
    digest = hashlib.sha256(prompt.encode()).digest()
    return "eval" if int.from_bytes(digest[:8], "big") % EVAL_SHARE == 0 else "train"
