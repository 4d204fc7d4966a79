"""Pairs that a run sampled, as rows of a file. Any library can read the text; posttrain reads the token ids.

    {"prompt": ..., "chosen": ..., "rejected": ..., "margin": 0.5, "prompt_ids": [...], "chosen_ids": [...], ...}

The ids are the sampled ones. Tokenising the text again may give other ids, which the policy would never have sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from posttrain.data.dropped import Unusable
from posttrain.data.harmony import Channels, final_text
from posttrain.data.messages import as_messages
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
    for name, is_spelled in (("prompt", _spells_prompt), ("chosen", _spells_answer), ("rejected", _spells_answer)):
        if not (_are_ids(values[f"{name}_ids"], tokenizer) and is_spelled(tokenizer, values, name)):
            raise Unusable(
                f"{name}_ids that do not spell {name} (edited text, or another tokenizer): leave out the columns of "
                "ids, and posttrain tokenises the text"
            )
    return sampled_pair(values, index)


def write_sampled_pair(
    prompt: Prompt, chosen: Completion, rejected: Completion, stop: Sequence[str] = ()
) -> dict[str, Any]:
    """The columns of a sampled pair: texts, which any reader of preference data knows, and ids, to read it back.

    `stop` are the strings that ended answers: the ids hold them, the texts do not."""

    def answer(completion: Completion) -> Any:
        return completion.text if prompt.messages is None else [{"role": "assistant", "content": completion.text}]

    return {
        "prompt": prompt.text if prompt.messages is None else list(prompt.messages),
        "chosen": answer(chosen),
        "rejected": answer(rejected),
        "prompt_ids": list(prompt.ids),
        "chosen_ids": list(chosen.ids),
        "rejected_ids": list(rejected.ids),
        **({"stop": list(stop)} if stop else {}),
    }


def _are_ids(ids: list[Any], tokenizer: PreTrainedTokenizerBase) -> bool:
    return bool(ids) and all(isinstance(i, int) and 0 <= i < len(tokenizer) for i in ids)


def _spells_prompt(tokenizer: PreTrainedTokenizerBase, values: Mapping[str, Any], name: str) -> bool:
    """Whether the ids hold the prompt: the same text, or the turns of a conversation within a chat template. Templates
    may shorten turns of the assistant and rewrite those of tools."""
    prompt, spelled = values.get(name), _decoded(tokenizer, values[f"{name}_ids"])
    if isinstance(prompt, str):
        return spelled == _decoded(tokenizer, tokenizer(prompt)["input_ids"])
    texts = [turn["content"] for turn in as_messages(prompt) if turn["role"] in ("system", "user")]
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    return all(_decoded(tokenizer, one).strip() in spelled for one in ids)


def _spells_answer(tokenizer: PreTrainedTokenizerBase, values: Mapping[str, Any], name: str) -> bool:
    """Whether the ids decode to the answer, which is text or one assistant turn, and is cut before a stop string."""
    answer, ids = values.get(name), values[f"{name}_ids"]
    if isinstance(answer, list) and len(answer) == 1 and isinstance(answer[0], Mapping):
        answer = answer[0].get("content")
    channels = Channels.of(tokenizer)
    turn = None if channels is None else channels.turn(ids)
    spelled = _decoded(tokenizer, ids) if turn is None else turn
    stop = values.get("stop")
    found = [spelled.find(str(string)) for string in (stop if isinstance(stop, list) else ())]
    ends = [len(spelled), *(at for at in found if at >= 0)]
    return answer in [spelled[:end] if turn is None else final_text(spelled[:end]) for end in ends]


def _decoded(tokenizer: PreTrainedTokenizerBase, ids: Any) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
