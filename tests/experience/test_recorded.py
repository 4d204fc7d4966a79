"""The rollout file of a step gives the experience back bit for bit, for any groups."""

from __future__ import annotations

import io
import math
import struct
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import examples

from posttrain.experience.assemble import experience_of
from posttrain.experience.group import Group
from posttrain.experience.recorded import read_rollouts
from posttrain.experience.rollouts import rollout_table
from posttrain.rewards import Scores
from posttrain.types import Completion, Episode, Experience, Prompt

LABELS = ("plain", "behind a/gate", "of tokens")
VERSION = 2**31 - 1
REWARDS = st.floats(-1e6, 1e6)
FLOAT32 = st.floats(-(2.0**99), 0.0, width=32)


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=4)
EPISODES = st.builds(
    Episode,
    messages=st.lists(st.fixed_dictionaries({"role": TEXT, "content": TEXT}), max_size=2).map(tuple),
    turns=st.integers(0, 9),
    ended=st.sampled_from(["done", "max_turns", "failed"]),
    reward=st.none() | st.floats(-1e6, 1e6),
    calls=st.lists(TEXT, max_size=2).map(tuple),
    failure=TEXT,
)


@st.composite
def completions(draw: st.DrawFn) -> Completion:
    ids = draw(st.lists(st.integers(0, 50_000), max_size=6))
    begin = draw(st.integers(0, len(ids)))
    end = draw(st.integers(begin, len(ids)))
    drawn = len(ids) - (end - begin)
    versions = draw(st.lists(st.integers(VERSION - 5, VERSION), min_size=drawn, max_size=drawn))
    return Completion(
        ids=tuple(ids),
        logprobs=tuple(draw(st.lists(FLOAT32, min_size=drawn, max_size=drawn))),
        versions=tuple(sorted(versions)),
        finish_reason=draw(st.sampled_from(["eos", "stop", "length"])),
        text=draw(TEXT),
        given=((begin, end),) if end > begin else (),
        starts=(begin,) if end > begin and draw(st.booleans()) else (),
        episode=draw(st.none() | EPISODES),
    )


@st.composite
def groups(draw: st.DrawFn, size: int) -> Group:
    own = tuple(draw(completions()) for _ in range(size))

    def row(of: st.SearchStrategy[Any]) -> list[list[Any]]:
        return [[draw(of) for _ in own]]

    scored = row(st.booleans())
    tokens = [[draw(st.none() | st.lists(REWARDS, min_size=len(c.ids), max_size=len(c.ids))) for c in own]]
    return Group(
        prompt=Prompt(
            index=draw(st.integers(0, 2**40)), ids=tuple(draw(st.lists(st.integers(0, 9), max_size=3))), text="p"
        ),
        completions=own,
        scores=Scores(
            rewards_PG=[[draw(REWARDS) if known else math.nan for known in scored[0]]],
            scored_PG=scored,
            parts={
                LABELS[0]: row(st.none() | REWARDS),
                LABELS[1]: row(st.none() | REWARDS),
                LABELS[2]: [[None if t is None else math.fsum(t) for t in tokens[0]]],
            },
            failures=(),
            seconds={},
            tokens={LABELS[2]: tokens},
            is_open={LABELS[1]: row(st.none() | st.booleans())},
        ),
    )


def bits(value: Any) -> Any:
    """A value for comparison in which NaN is equal to itself, and -0.0 differs from 0.0."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.contiguous().reshape(-1).view(torch.uint8).tolist()
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, list | tuple):
        return [bits(one) for one in value]
    if isinstance(value, dict):
        return {key: bits(one) for key, one in value.items()}
    return value


def content(experience: Experience) -> dict[str, Any]:
    found = {field.name: getattr(experience, field.name) for field in fields(experience)}
    return bits(found | {"tokens": vars(found["tokens"])})


@examples(8, 60)
@given(st.data())
def test_the_experience_of_a_step_comes_back_bit_for_bit(tmp_path_factory, data):
    size = data.draw(st.integers(1, 3), "group size")
    trained = data.draw(st.lists(groups(size), min_size=1, max_size=3), "trained")
    discarded = data.draw(st.lists(groups(size), max_size=2), "discarded")
    greedy = [data.draw(groups(1)) for _ in trained] if data.draw(st.booleans(), "greedy") else []
    weights = data.draw(st.none() | st.tuples(REWARDS, REWARDS, REWARDS), "weights")
    how = {"pad_id": 0, "version": VERSION, "max_lag": data.draw(st.none() | st.integers(0, 5), "max_lag")}
    folder = tmp_path_factory.mktemp("run")
    (folder / "rollouts").mkdir()
    table = rollout_table(7, trained, None, discarded=discarded, greedy=greedy, version=VERSION, weights=weights)
    buffer = io.BytesIO()
    parquet.write_table(table, buffer, compression="zstd")
    Path(folder, "rollouts", "step-000007.parquet").write_bytes(buffer.getvalue())
    found = read_rollouts(folder, 7)
    assert found.version == VERSION
    assert found.weights == (None if weights is None else list(weights))
    before = experience_of(trained, greedy, weights, **how)
    after = experience_of(found.trained, found.greedy, found.weights, **how)
    assert content(after) == content(before)
    assert [group.completions for group in found.discarded] == [group.completions for group in discarded]
