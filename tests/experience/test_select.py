"""Dynamic sampling: groups without signal are replaced until the step is full; counts decide, and never timing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from tests.catalogue import few
from tests.tiny import tiny_model, write_prompts

import posttrain
from posttrain.config import RunConfig
from posttrain.data.order import Strata
from posttrain.data.strata import strata_of
from posttrain.errors import DataError, GuardStop, RewardError
from posttrain.experience.generate import Generated
from posttrain.experience.group import Group, groups_of
from posttrain.experience.schedule import Schedule
from posttrain.experience.selection import (
    DynamicallySelected,
    DynamicSampling,
    EveryGroup,
    Selected,
    informative,
    kinds_of,
)
from posttrain.rewards import Scores
from posttrain.train.metrics import MetricLog
from posttrain.train.run import Run
from posttrain.types import Completion, Prompt

NAN = float("nan")
MIXED, RIGHT, WRONG, HALF = [1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.5, 0.5]


def config(prompts_per_step: int = 4, **train: Any) -> RunConfig:
    return RunConfig(
        model="m",  # pyright: ignore[reportArgumentType]
        algorithm="grpo",  # pyright: ignore[reportArgumentType]
        data={"train": "d"},  # pyright: ignore[reportArgumentType]
        train={"steps": 9, "prompts_per_step": prompts_per_step, **train},  # pyright: ignore[reportArgumentType]
    )


def scored(
    rewards_PG: Sequence[Sequence[float]], rows: Sequence[int] | None = None, finish_reason: Any = "eos"
) -> list[Group]:
    answer = Completion(ids=(5,), logprobs=(-0.5,), versions=(0,), finish_reason=finish_reason, text="")
    rows = range(len(rewards_PG)) if rows is None else rows
    scores = Scores(
        rewards_PG=[list(group) for group in rewards_PG],
        scored_PG=[[reward == reward for reward in group] for group in rewards_PG],
        parts={},
        failures=(),
        seconds={},
    )
    prompts = [Prompt(index=row, ids=(1,), text="") for row in rows]
    return groups_of(prompts, [[answer] * len(group) for group in rewards_PG], scores)


class Drawing:
    """Generates groups whose rewards depend on the row, and records the requests."""

    def __init__(self, reward: Callable[[int], list[float]]) -> None:
        self.reward, self.rounds = reward, []

    def __call__(self, rows: Sequence[int], number: int) -> Generated:
        assert number == len(self.rounds)
        self.rounds.append(list(rows))
        return Generated(groups=scored([self.reward(row) for row in rows], rows))


def trained_rows(selected: Selected) -> list[int]:
    return [group.prompt.index for group in selected.trained]


def test_worked_example_groups_1_and_2_are_kept_and_group_3_is_dropped(rewards_PG):
    assert informative(scored(rewards_PG.tolist())) == [0, 1]


def test_without_the_need_the_step_is_one_round_of_its_own_rows():
    draw = Drawing(lambda row: RIGHT)
    selected = EveryGroup(config(), 20)(3, draw)
    assert [len(rows) for rows in draw.rounds] == [4]
    assert trained_rows(selected) == draw.rounds[0]


def test_a_step_whose_groups_all_have_signal_is_one_round():
    selected = DynamicSampling(config(), 20)(3, Drawing(lambda row: MIXED))
    assert selected.rounds == 1
    assert len(selected.trained) == len(selected.generated.groups) == 4


@pytest.mark.parametrize("select", [EveryGroup, DynamicSampling])
def test_stratified_steps_hold_each_kind_in_its_share(select):
    kinds = ["Yes", "No"] * 10
    selected = select(config(), 20, Strata.by(kinds))(3, Drawing(lambda row: MIXED))
    assert sorted(kinds[row] for row in trained_rows(selected)) == ["No", "No", "Yes", "Yes"]


def test_a_schedule_and_a_step_take_the_same_stratified_rows():
    prompts = [Prompt(index=row, ids=(1,), text="", columns={"answer": "ab"[row % 2]}) for row in range(20)]
    strata = strata_of(prompts, "answer")
    schedule = Schedule(0, prompts, 4, strata)
    rows = trained_rows(EveryGroup(config(), 20, strata)(3, Drawing(lambda row: MIXED)))
    assert [schedule(number).prompt.index for number in range(8, 12)] == rows


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (
            "label",
            "data.stratify = label: no such column in each of the 4 prompts; allowed: a column with a few values",
        ),
        ("id", "data.stratify = id: a value of its own in each of the 4 prompts; .*the columns are id, kind, task"),
        ("task", "data.stratify = task: the same value in each of the 4 prompts"),
    ],
)
def test_a_column_that_tells_no_kinds_apart_is_refused(column, told):
    rows = [{"id": row, "kind": row % 2, "task": "sums"} for row in range(4)]
    prompts = [Prompt(index=row, ids=(1,), text="", columns=columns) for row, columns in enumerate(rows)]
    with pytest.raises(DataError, match=told):
        strata_of(prompts, column)


def test_rows_without_the_column_are_a_kind():
    prompts = [Prompt(index=row, ids=(1,), text="", columns=columns) for row, columns in enumerate([{"a": 1}, {}, {}])]
    strata = strata_of(prompts, "a")
    assert strata is not None
    assert strata.of_rows.tolist() == [0, 1, 1]


def test_further_rounds_draw_what_is_expected_to_be_needed_and_no_row_twice():
    """About half of the rows have signal: four rows bring two groups, so the two missing groups take four more rows."""
    draw = Drawing(lambda row: MIXED if row % 2 else WRONG)
    selected = DynamicSampling(config(), 40)(1, draw)
    for done, rows in enumerate(draw.rounds[1:], 1):
        drawn = sum(map(len, draw.rounds[:done]))
        kept = sum(row % 2 for earlier in draw.rounds[:done] for row in earlier)
        assert len(rows) == (min(4, -(-(4 - kept) * drawn // kept)) if kept else 4)
    everything = [row for rows in draw.rounds for row in rows]
    assert len(set(everything)) == len(everything)
    assert trained_rows(selected) == [row for row in everything if row % 2][:4]
    assert selected.rounds == len(draw.rounds) > 1


def test_what_a_round_draws_is_a_function_of_seed_step_and_round():
    def rounds(step: int, seed: int = 0) -> list[list[int]]:
        draw = Drawing(lambda row: MIXED if row % 2 else WRONG)
        DynamicSampling(config().model_copy(update={"seed": seed}), 40)(step, draw)
        return draw.rounds

    assert rounds(1) == rounds(1)
    assert rounds(1) != rounds(2)
    assert rounds(1) != rounds(1, seed=1)


def test_a_small_dataset_is_drawn_again_only_when_all_of_it_was_drawn():
    draw = Drawing(lambda row: MIXED if row == 5 else WRONG)
    DynamicSampling(config(2, max_sampling_rounds=9), 6)(1, draw)
    everything = [row for rows in draw.rounds for row in rows]
    assert sorted(everything[:6]) == [0, 1, 2, 3, 4, 5]
    assert everything.count(5) == 2, "the same prompt fills both places, with other completions"


def test_data_without_signal_stops_with_what_was_found():
    with pytest.raises(GuardStop) as stopped:
        DynamicSampling(config(max_sampling_rounds=3), 40)(7, Drawing(lambda row: WRONG if row % 4 else RIGHT))
    text = str(stopped.value)
    assert "step 7: 0 of 12 groups in 3 rounds of sampling had a signal" in text
    assert "all wrong" in text
    assert "all right" in text
    assert "train.max_sampling_rounds = 6" in text
    assert "take easier prompts" in text


def test_too_easy_data_is_told_from_too_hard():
    with pytest.raises(GuardStop, match=r"100% all right .* 0% all wrong"):
        DynamicSampling(config(), 40)(1, Drawing(lambda row: RIGHT))
    with pytest.raises(GuardStop, match="take harder prompts"):
        DynamicSampling(config(), 40)(1, Drawing(lambda row: RIGHT))


def test_rewards_that_fail_are_told_as_such_and_not_as_data_without_signal():
    with pytest.raises(RewardError, match="have no reward"):
        DynamicSampling(config(), 40)(1, Drawing(lambda row: [NAN, NAN]))


def test_groups_are_counted_by_what_their_rewards_have_in_common():
    kinds = kinds_of(scored([MIXED, RIGHT, RIGHT, WRONG, HALF, [NAN, 1.0]]))
    assert (kinds.informative, kinds.high, kinds.low, kinds.between, kinds.unscored) == (1, 2, 1, 1, 1)


def test_the_cost_of_filling_a_step_is_measured():
    groups = scored([MIXED, RIGHT, WRONG, WRONG, MIXED, MIXED])
    log = MetricLog()
    log.add(DynamicallySelected(generated=Generated(groups=groups), places=[0, 4], rounds=2).metrics())
    found = log.reduce()
    assert found["data/sampling_rounds"] == 2
    assert found["data/generated_per_trained"] == 3
    shares = {name: found[f"data/discarded_{name}"] for name in ("all_high", "all_low", "surplus", "other")}
    assert shares == pytest.approx({"all_high": 1 / 6, "all_low": 2 / 6, "surplus": 1 / 6, "other": 0})
    rates = [found[f"data/pass_rate/{name}"] for name in ("none", "under_half", "over_half", "all")]
    assert rates == pytest.approx([2 / 6, 0, 3 / 6, 1 / 6])


def test_truncated_answers_are_named_where_there_is_no_signal():
    def draw(rows: Sequence[int], number: int) -> Generated:
        return Generated(groups=scored([WRONG for _ in rows], rows, "length"))

    with pytest.raises(GuardStop, match="100% of the answers were truncated"):
        DynamicSampling(config(), 40)(1, draw)


# --- whole runs -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("refill")
    tiny_model(folder / "model")
    write_prompts(folder / "prompts.jsonl", count=20)
    (folder / "rewards.py").write_text("def has_a(prompt, completion, **row):\n    return float('a' in completion)\n")
    return folder


def train(folder: Path, name: str, **overrides: Any) -> Run:
    settings = {
        "model": {"path": str(folder / "model"), "device": "cpu"},
        "algorithm": {"name": "dapo", "dynamic_sampling": True},
        "data": {"train": str(folder / "prompts.jsonl"), "eval_fraction": 0},
        "rewards": [{"function": f"{folder / 'rewards.py'}:has_a"}],
        "sampling": {"group_size": 4, "max_completion_length": 6},
        "train": {"steps": 4, "prompts_per_step": 4, "learning_rate": 0.01},
        "guards": {"max_truncated": 1.0},
        "output": str(folder / name),
        "report": False,
    }
    return posttrain.train(settings, **overrides)


def records(run: Run) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "memory/"))} for row in run.metrics]


@pytest.fixture(scope="module")
def whole(folder) -> Run:
    return train(folder, "whole", **{"train.steps": 2})


@pytest.mark.slow
@pytest.mark.parametrize(("begun", "steps"), few([(1, 2), (2, 4)], (1, 2)))
def test_a_resumed_run_draws_the_groups_that_the_other_would_have_drawn(folder, whole, begun, steps):
    part = train(folder, f"part {begun}", **{"train.steps": begun})
    if steps > 2:
        whole = train(folder, f"whole {steps}", **{"train.steps": steps})
    assert records(posttrain.resume(part.folder, steps=steps)) == records(whole)
    assert max(row["data/sampling_rounds"] for row in whole.metrics) > 1


def test_every_group_that_is_trained_has_a_signal(whole):
    for file in sorted((whole.folder / "rollouts").glob("*.parquet")):
        rows = parquet.read_table(file).to_pylist()
        trained = [row for row in rows if not row["discarded"]]
        assert len(trained) == 16
        assert all(len({row["reward"] for row in trained[start : start + 4]}) == 2 for start in range(0, 16, 4))


def test_tokens_that_were_sampled_and_discarded_are_counted(whole):
    rows = parquet.read_table(whole.folder / "rollouts" / "step-000001.parquet").to_pylist()
    assert whole.metrics[0]["num_tokens"] == sum(len(row["prompt_ids"]) + len(row["completion_ids"]) for row in rows)
