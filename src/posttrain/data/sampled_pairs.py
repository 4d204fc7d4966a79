"""Pairs that a run sampled, as rows of a file. Any library can read the text; posttrain reads the token ids.

    {"prompt": ..., "chosen": ..., "rejected": ..., "margin": 0.5, "prompt_ids": [...], "chosen_ids": [...], ...,
     "texts_sha256": "..."}

The ids are the sampled ones. Tokenising the text again may give other ids, which the policy would never have sampled.
A digest of the three texts shows whether one was edited beside its ids.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase

from posttrain.data.dropped import Unusable
from posttrain.data.harmony import Channels, final_text
from posttrain.data.read import Row
from posttrain.types import Completion, Example, Pair, Prompt

TEXTS = ("prompt", "chosen", "rejected")
IDS = tuple(f"{name}_ids" for name in TEXTS)
DIGEST = "texts_sha256"
REMEDY = "leave out the columns of ids, and posttrain tokenises the text"


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
    """Build a pair from a row of a file. Raises Unusable if a text was edited, or if this tokenizer does not decode the
    ids to the answers. Without a digest, only a prompt of plain text can be compared with its ids."""
    values = row.values
    written = values.get(DIGEST)
    if written is not None and written != _digest(values):
        raise Unusable(f"a prompt or an answer that was edited beside its ids: {REMEDY}")
    checks = {"chosen": _spells_answer, "rejected": _spells_answer} | ({} if written else {"prompt": _spells_prompt})
    for name in TEXTS:
        text, ids = values.get(name), values[f"{name}_ids"]
        if not _are_ids(tokenizer, ids) or (name in checks and not checks[name](tokenizer, ids, text)):
            raise Unusable(f"{name}_ids that do not spell {name} (edited text, or another tokenizer): {REMEDY}")
    return sampled_pair(values, index)


def write_sampled_pair(prompt: Prompt, chosen: Completion, rejected: Completion) -> dict[str, Any]:
    """The columns of a sampled pair: texts, which any reader of preference data knows, and ids, to read it back."""

    def answer(completion: Completion) -> Any:
        return completion.text if prompt.messages is None else [{"role": "assistant", "content": completion.text}]

    texts = {
        "prompt": prompt.text if prompt.messages is None else list(prompt.messages),
        "chosen": answer(chosen),
        "rejected": answer(rejected),
    }
    return {
        **texts,
        "prompt_ids": list(prompt.ids),
        "chosen_ids": list(chosen.ids),
        "rejected_ids": list(rejected.ids),
        DIGEST: _digest(texts),
    }


def _digest(values: Mapping[str, Any]) -> str:
    texts = json.dumps([_without_none(values.get(name)) for name in TEXTS], sort_keys=True, default=str)
    return hashlib.sha256(texts.encode()).hexdigest()


def _without_none(value: Any) -> Any:
    """The value without keys that hold None: Parquet gives every turn the keys of all turns."""
    if isinstance(value, Mapping):
        return {key: _without_none(one) for key, one in value.items() if one is not None}
    return [_without_none(one) for one in value] if isinstance(value, list | tuple) else value


def _are_ids(tokenizer: PreTrainedTokenizerBase, ids: list[Any]) -> bool:
    return bool(ids) and all(isinstance(i, int) and 0 <= i < len(tokenizer) for i in ids)


def _spells_prompt(tokenizer: PreTrainedTokenizerBase, ids: list[int], prompt: Any) -> bool:
    """Whether the ids decode to a prompt of plain text. What a template makes of a conversation is not known here."""
    return not isinstance(prompt, str) or _decoded(tokenizer, ids) == _decoded(tokenizer, tokenizer(prompt).input_ids)


def _spells_answer(tokenizer: PreTrainedTokenizerBase, ids: list[int], answer: Any) -> bool:
    """Whether the ids decode to text or to one assistant turn. In the ids, a stop string may follow."""
    if isinstance(answer, list) and len(answer) == 1 and isinstance(answer[0], Mapping):
        answer = answer[0].get("content")
    channels = Channels.of(tokenizer)
    turn = None if channels is None else channels.turn(ids)
    spelled = _decoded(tokenizer, ids) if turn is None else final_text(turn)
    return isinstance(answer, str) and spelled.startswith(answer)


def _decoded(tokenizer: PreTrainedTokenizerBase, ids: Any) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
