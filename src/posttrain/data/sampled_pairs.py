"""Pairs that a run sampled, as rows of a file. Any library can read the text; posttrain reads the token ids.

    {"prompt": ..., "chosen": ..., "rejected": ..., "margin": 0.5, "prompt_ids": [...], "chosen_ids": [...], ...}

The ids are the sampled ones. Tokenising the text again may give other ids, which the policy would never have sampled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase

from posttrain.data.dropped import Unusable
from posttrain.data.harmony import Channels, final_text
from posttrain.data.read import Row
from posttrain.types import Completion, Example, Pair, Prompt

IDS = ("prompt_ids", "chosen_ids", "rejected_ids")


def is_sampled_pair(row: Row) -> bool:
    """Whether the row has the token ids of a prompt and two answers."""
    return all(isinstance(row.values.get(name), list) for name in IDS)


def sampled_pair(values: Mapping[str, Any], index: int) -> Pair:
    """Build a pair from its ids alone. All tokens of the answers are trained."""
    prompt_ids, chosen_ids, rejected_ids = (tuple(values[name]) for name in IDS)

    def side(answer: tuple[int, ...]) -> Example:
        mask = (False,) * len(prompt_ids) + (True,) * len(answer)
        return Example(index=index, input_ids=(*prompt_ids, *answer), completion_mask=mask)

    return Pair(index=index, chosen=side(chosen_ids), rejected=side(rejected_ids), margin=values.get("margin"))


def read_sampled_pair(row: Row, tokenizer: PreTrainedTokenizerBase, index: int) -> Pair:
    """Build a pair from a row of a file. Raises Unusable if this tokenizer does not decode the ids to the texts."""
    values = row.values
    for name in ("chosen", "rejected"):
        if not _spells(tokenizer, values[f"{name}_ids"], _text(values.get(name))):
            raise Unusable(
                f"{name}_ids of another tokenizer: leave out the columns of ids, and posttrain tokenises the text"
            )
    return sampled_pair(values, index)


def write_sampled_pair(prompt: Prompt, chosen: Completion, rejected: Completion) -> dict[str, Any]:
    """The columns of a sampled pair: texts, which any reader of preference data knows, and ids, to read it back."""

    def answer(completion: Completion) -> Any:
        return completion.text if prompt.messages is None else [{"role": "assistant", "content": completion.text}]

    return {
        "prompt": prompt.text if prompt.messages is None else list(prompt.messages),
        "chosen": answer(chosen),
        "rejected": answer(rejected),
        "prompt_ids": list(prompt.ids),
        "chosen_ids": list(chosen.ids),
        "rejected_ids": list(rejected.ids),
    }


def _text(answer: Any) -> str | None:
    """The text of an answer, which is text or one assistant turn; None for anything else."""
    if isinstance(answer, list) and len(answer) == 1 and isinstance(answer[0], Mapping):
        answer = answer[0].get("content")
    return answer if isinstance(answer, str) else None


def _spells(tokenizer: PreTrainedTokenizerBase, ids: list[int], text: str | None) -> bool:
    """Whether the ids decode to the text. In the ids, the text may be followed by a stop string."""
    if text is None or not ids or not all(isinstance(i, int) and 0 <= i < len(tokenizer) for i in ids):
        return False
    channels = Channels.of(tokenizer)
    turn = None if channels is None else channels.turn(ids)
    spelled = str(tokenizer.decode(ids, skip_special_tokens=True)) if turn is None else final_text(turn)
    return spelled.startswith(text)
