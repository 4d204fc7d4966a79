"""The rollout file of a step: every completion with its text, its ids and every number behind its loss.

It suffices for training the step again (recorded.py). Facts without a column are in the metadata of the schema, under
the key `posttrain`:

    {"format": 1, "version": 41, "labels": ["math"], "weights": [1.0], "sha256": ...}

`version` is the policy version that learned from the file. `weights` are the rewards' weights in the order of `labels`;
null if nothing is learned from rewards. The hash covers all columns and these facts.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import compress
from typing import Any

import pyarrow as pa
from torch import Tensor

from posttrain.experience.group import Group
from posttrain.rewards import Scores
from posttrain.types import Completion

VERDICT_COLUMNS = {"reason": pa.string(), "extracted": pa.string(), "seconds": pa.float64()}
"""The columns of a verdict in a rollout table, in addition to its score."""
NUMBERS = pa.list_(pa.float32())
VERSIONS = pa.list_(pa.int32())
TURNS = {"given": pa.list_(pa.list_(pa.int32())), "starts": pa.list_(pa.int32()), "episode": pa.string()}
"""Columns of completions with several turns."""
EXACT_NUMBERS = pa.list_(pa.float64())
"""The type of numbers that are added up before they are rounded to float32."""
FACTS, FORMAT = b"posttrain", 1


def rollout_table(
    step: int,
    trained: Sequence[Group],
    advantages_BT: Tensor | None,
    *,
    roles: Sequence[str] | None = None,
    discarded: Sequence[Group] = (),
    greedy: Sequence[Group] = (),
    completion_mask_BT: Tensor | None = None,
    columns: Mapping[str, Sequence[float | None]] | None = None,
    version: int | None = None,
    weights: Sequence[float] | None = None,
) -> pa.Table:
    """One row per completion, in the order of the batch (row = p * G + g); text, ids, and every number behind its loss.

    advantages, logprobs      one entry per completion token, and one per sampled token; `advantage` is the mean over
                              the sampled tokens without those that are too old, whose advantages are 0
    reward, reward/<label>    null if there is none
    reward/<label>/reason     the verdict's reason; /extracted: the answer that was found; /seconds: time it took
    reward/<label>/open       for a reward behind a gate: whether the gate was open
    token_rewards/<label>     the rewards of single tokens, if a component gives them
    versions, version         the policy version that sampled each token, and the last one
    given                     ranges of completion_ids that the policy did not sample, if there are any
    starts                    positions in completion_ids where a new context begins, if there are any
    episode                   for completions with several turns: messages, calls and reward (`Episode`), as JSON
    role                      instead of advantages if completions are compared in pairs (`pair_roles`)
    discarded                 true for groups that were sampled and not trained: they come last, without advantages
    greedy_completion, _reward  the greedy answer to the prompt, repeated for each completion of the group

    `completion_mask_BT` is the mask of the experience: False on tokens that are too old. None: none are. `columns` are
    further numbers for the trained rows. For `version` and `weights` see the top of this file.
    """
    rows = list(_rows(step, trained, advantages_BT, completion_mask_BT))
    for row, role in zip(rows, roles or (), strict=roles is not None):
        row["role"] = role
    for name, values in (columns or {}).items():
        for row, value in zip(rows, values, strict=True):
            row[name] = value
    if greedy:
        for row in rows:
            group = greedy[row["group"]]
            row |= {"greedy_completion": group.completions[0].text, "greedy_reward": _reward(group, 0)}
    first = {"first_group": len(trained), "first_row": len(rows)}
    rows += [row | {"discarded": True} for row in _rows(step, discarded, None, None, **first)]
    judged = [group.scores for group in (*trained, *discarded) if group.scores is not None]
    labels = dict.fromkeys(label for scores in judged for label in scores.parts)
    more = ({"role": pa.string()} if roles is not None else {}) | dict.fromkeys(columns or {}, pa.float64())
    reasons = dict.fromkeys(label for scores in judged for label in scores.verdicts)
    more |= {f"reward/{label}/{name}": kind for label in reasons for name, kind in VERDICT_COLUMNS.items()}
    more |= {f"reward/{label}/open": pa.bool_() for scores in judged for label in scores.is_open}
    more |= {f"token_rewards/{label}": EXACT_NUMBERS for scores in judged for label in scores.tokens}
    more |= {name: kind for name, kind in TURNS.items() if any(name in row for row in rows)}
    if greedy:
        more |= {"greedy_completion": pa.string(), "greedy_reward": pa.float64()}
    table = pa.Table.from_pylist(rows, schema=_rollout_schema(labels, more))
    facts = {"format": FORMAT, "version": version, "labels": list(labels), "weights": weights and list(weights)}
    facts["sha256"] = content_hash(table, facts)
    return table.replace_schema_metadata({FACTS: json.dumps(facts)})


def content_hash(table: pa.Table, facts: Mapping[str, Any]) -> str:
    """Return a hash that changes with the facts, with any name, type, value or null, and with the order of rows."""
    names = [[field.name, str(field.type).replace("element: ", "item: ")] for field in table.schema]  # as in parquet
    digest = hashlib.sha256(json.dumps([{**facts, "sha256": None}, names], sort_keys=True).encode())

    def add(array: Any) -> None:
        digest.update(array.is_valid().cast(pa.int8()).to_numpy().tobytes())
        if pa.types.is_list(array.type):
            digest.update(array.value_lengths().fill_null(0).to_numpy().tobytes())
            add(array.flatten())
        elif pa.types.is_string(array.type):
            digest.update(json.dumps(array.to_pylist()).encode())
        else:
            numbers = array.cast(pa.int8()) if pa.types.is_boolean(array.type) else array
            digest.update(numbers.fill_null(0).to_numpy().tobytes())

    for column in table.columns:
        add(pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type))
    return digest.hexdigest()


def _rows(
    step: int,
    groups: Sequence[Group],
    advantages_BT: Tensor | None,
    completion_mask_BT: Tensor | None,
    *,
    first_group: int = 0,
    first_row: int = 0,
) -> Iterator[dict[str, Any]]:
    number = 0
    for place, group in enumerate(groups):
        prompt, scores = group.prompt, group.scores
        for g, completion in enumerate(group.completions):
            span = slice(len(prompt.ids), len(prompt.ids) + len(completion.ids))
            advantages, learned = None, []
            if advantages_BT is not None:
                advantages = advantages_BT[number, span].tolist()
                trained = completion.drawn if completion_mask_BT is None else completion_mask_BT[number, span].tolist()
                learned = list(compress(advantages, trained))
            yield {
                "step": step,
                "prompt_index": prompt.index,
                "group": first_group + place,
                "row": first_row + number,
                "prompt": prompt.text,
                "answer": _text(prompt.columns.get("answer")),
                "completion": completion.text,
                "prompt_ids": prompt.ids,
                "completion_ids": completion.ids,
                "reward": _reward(group, g),
                "scored": None if scores is None else bool(scores.scored_PG[0][g]),
                "discarded": False,
                "advantage": math.fsum(learned) / len(learned) if learned else None,
                "advantages": advantages,
                "logprobs": completion.logprobs,
                "finish_reason": completion.finish_reason,
                "version": completion.versions[-1] if completion.versions else None,
                "versions": completion.versions,
                **_turns(completion),
                **({} if scores is None else {f"reward/{label}": part[0][g] for label, part in scores.parts.items()}),
                **({} if scores is None else _reasons(scores, g)),
                **({} if scores is None else {f"reward/{k}/open": part[0][g] for k, part in scores.is_open.items()}),
                **({} if scores is None else {f"token_rewards/{k}": part[0][g] for k, part in scores.tokens.items()}),
            }
            number += 1


def _turns(completion: Completion) -> dict[str, Any]:
    """Return the columns of several turns; empty for a completion of a single turn."""
    episode = None if completion.episode is None else json.dumps(asdict(completion.episode))
    found = {"given": completion.given, "starts": completion.starts, "episode": episode}
    return {name: value for name, value in found.items() if value}


def _reasons(scores: Scores, g: int) -> dict[str, Any]:
    """Return the verdict columns of each reward that has verdicts: reason, extracted answer and time."""
    found = {label: verdict_PG[0][g] for label, verdict_PG in scores.verdicts.items()}
    return {
        f"reward/{label}/{name}": getattr(verdict, name)
        for label, verdict in found.items()
        if verdict is not None
        for name in VERDICT_COLUMNS
    }


def _reward(group: Group, g: int) -> float | None:
    """Return the total reward, or None if there is none."""
    if group.scores is None or not group.scores.scored_PG[0][g]:
        return None
    return float(group.scores.rewards_PG[0][g])


def _text(answer: Any) -> str | None:
    """Return the gold answer as text; None if the data has none."""
    return answer if isinstance(answer, str) or answer is None else json.dumps(answer, default=str)


def _rollout_schema(labels: Iterable[str], more: dict[str, pa.DataType]) -> pa.Schema:
    whole, text, ids = pa.int64(), pa.string(), pa.list_(pa.int32())
    types = {
        "step": whole,
        "prompt_index": whole,
        "group": whole,
        "row": whole,
        "prompt": text,
        "answer": text,
        "completion": text,
        "prompt_ids": ids,
        "completion_ids": ids,
        "reward": pa.float64(),
        "scored": pa.bool_(),
        "discarded": pa.bool_(),
        "advantage": pa.float64(),
        "advantages": NUMBERS,
        "logprobs": NUMBERS,
        "finish_reason": text,
        "version": whole,
        "versions": VERSIONS,
    }
    return pa.schema(types | more | {f"reward/{label}": pa.float64() for label in labels})
