"""Plans of runs with several turns: as long as the trainer allows, drawn turn by turn, with waiting."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from posttrain.config import load_config
from posttrain.data.prompts import Prompt, Renderer
from posttrain.episodes.tools import calculator, schema_of
from posttrain.errors import ConfigError
from posttrain.experience.feed import PromptFeed
from posttrain.lab.plan.api import make_plan
from posttrain.lab.plan.architecture import architecture_of
from posttrain.lab.plan.fitting import possible_steps
from posttrain.lab.plan.records import Turns, Workload
from posttrain.lab.plan.timing import WAITS, drawing_work, sampling_work
from posttrain.lab.plan.turns import first_and_last, is_counted, requests, waiting_seconds
from posttrain.lab.plan.workload import row_lengths
from posttrain.tasks.tiny import build_tokenizer

ROOT = Path(__file__).parents[3]
CONFIG: dict[str, Any] = {
    "model": "0.5b",
    "algorithm": "grpo",
    "data": {"train": "rows.jsonl"},
    "tools": ["calculator"],
    "rewards": ["numeric"],
    "sampling": {"group_size": 4, "max_completion_length": 32, "max_turns": 3},
    "train": {"steps": 2, "prompts_per_step": 2},
}


def plan(overrides: dict[str, Any] | None = None, **how: Any) -> Any:
    return make_plan(CONFIG, overrides or {}, gpus="h100", prompt_tokens=100, **how)


# --- how long ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "longest"),
    [
        ({}, 3 * 32),
        ({"sampling.max_trajectory_length": 300}, 300),
        ({"sampling.max_trajectory_length": 50}, 50),
        ({"sampling.max_turns": 100}, 1000 - 100),
        ({"sampling.max_trajectory_length": 2000}, 1000 - 100),
    ],
    ids=["all turns", "with room for results", "cut", "turns fill the context", "the limit is beyond the context"],
)
def test_a_trajectory_is_as_long_as_the_one_that_the_trainer_tries(sampling, longest):
    """Compare with the longest batch of a run with prompts of 100 tokens and a context of 1,000."""
    config = load_config(CONFIG, sampling).config
    prompt = Prompt(index=0, text="", ids=(1,) * 100)
    tried = PromptFeed(config, [prompt] * 2, pad_id=0, context_length=1000).longest()
    assert int(tried.completion_mask_BT.sum(dim=1).max()) == longest
    planned = workload(config, context=1000)
    assert (planned.prompt_tokens, planned.completion_tokens) == (100, longest)


def workload(config: Any, *, context: int) -> Workload:
    from posttrain.lab.plan.workload import RowLengths, model_architecture, workload_of

    shape = replace(model_architecture("0.5b"), context=context)
    numbers = {"rows": 1, "prompt": 100, "completion": 0, "mean_prompt": 100, "mean_completion": 0}
    lengths = RowLengths(whole=True, heldout=0, **numbers)
    return workload_of(config, lengths=lengths, architecture=shape)


def test_what_tools_give_is_told_or_fills_the_limit_and_is_not_scored():
    told, filled = plan(given_tokens=20), plan({"sampling.max_trajectory_length": 200})
    assert told.workload.completion_tokens == 3 * 32 + 2 * 20
    assert told.workload.scored_tokens == told.step.scored_tokens // told.step.rows == 3 * 32
    assert (filled.workload.turns.given, filled.workload.completion_tokens) == (52, 200)
    assert plan().workload.completion_tokens == 3 * 32


@pytest.mark.slow
def test_the_schemas_of_tools_are_part_of_each_prompt(tmp_path):
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}="
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": [{"role": "user", "content": "1+1"}]}) + "\n")
    here = {"model": str(tmp_path), "data": {"train": str(tmp_path / "rows.jsonl"), "eval_fraction": 0.0}}
    found = row_lengths(load_config(CONFIG | here).config)
    renderer = Renderer(tokenizer=tokenizer, chat=True, tools=[schema_of(calculator, "calculator")])
    text = renderer.text([{"role": "user", "content": "1+1"}])
    assert "calculator" in text
    assert found is not None
    assert found.prompt == len(renderer.ids(text, is_chat=True))


# --- how much memory --------------------------------------------------------------------------------------------------


def test_the_last_turns_are_requests_behind_all_that_came_before_them():
    """There are 2 prompts x 4. On a CPU 5 of 8 rows are drawn while others wait. An accelerator draws all of them."""
    turns = Turns(number=3, tokens=32, given=20)
    whole = replace(plan().workload, device="cpu", completion_tokens=136, turns=turns)
    first, last = first_and_last(whole)
    assert (first.rows, first.group_size, first.prompt_tokens, first.completion_tokens) == (8, 4, 100, 32)
    assert (last.rows, last.group_size, last.prompt_tokens, last.completion_tokens) == (5, 1, 204, 32)
    assert first_and_last(replace(whole, device="cuda"))[1].rows == 8
    assert first_and_last(replace(whole, turns=None)) == (replace(whole, turns=None),)


def test_more_turns_need_more_memory_and_fewer_are_proposed_where_it_does_not_fit():
    few, many = (plan({"sampling.max_turns": turns}) for turns in (2, 8))
    assert few.memory.phase("generate").bytes < many.memory.phase("generate").bytes
    assert few.memory.phase("train").bytes < many.memory.phase("train").bytes
    steps = [step.settings for step in possible_steps(many.config, many.workload)]
    assert {"sampling.max_turns": 4} in steps
    assert {"sampling.max_trajectory_length": 128} in steps


# --- how long it takes ------------------------------------------------------------------------------------------------


def test_a_turn_is_drawn_behind_what_came_before_it_which_is_computed_again():
    """With 1.5 turns on average, half of the trajectories have a second turn."""
    turns = Turns(number=3, tokens=32, given=20, mean_number=1.5, mean_tokens=10)
    assert [tuple(one) for one in requests(turns, 136)] == [(0, 10, 1.0), (30, 10, 0.5)]
    assert [tuple(one) for one in requests(turns, 35)] == [(0, 10, 1.0), (30, 5, 0.5)]
    whole = replace(plan().workload, turns=turns, completion_tokens=136)
    one = replace(whole, turns=None)
    found = drawing_work(whole, prompts=2, per_prompt=4, answer_tokens=10)
    first = sampling_work(one, prompts=2, per_prompt=4, answer_tokens=10)
    second = sampling_work(replace(one, prompt_tokens=130), prompts=4, per_prompt=1, answer_tokens=10)
    assert found.flops == first.flops + second.flops
    assert found.bytes == first.bytes + second.bytes


def test_trajectories_wait_side_by_side():
    """4 steps of 64 trajectories, together or 32 at a time, wait for the answers to all turns but the last one."""
    tools = Turns(number=5, tokens=8, seconds=0.5)

    def waits(turns: Turns | None, rows: int) -> list[float]:
        return [waiting_seconds(turns, rows, 64, counted=counted) for counted in (False, True)]

    assert waits(tools, 64) == [2.0, 4.0]
    assert waits(replace(tools, last_is_answered=True), 64) == [2.5, 5.0]
    assert waits(tools, 256) == [4.0, 8.0]
    assert waits(tools, 1) == [2.0, 2.0], "a single row waits for each answer"
    assert waits(None, 64) == [0.0, 0.0]
    made = plan(call_seconds=0.5)
    (seconds,) = [one.seconds for one in made.cost.parts if one.what == WAITS]
    assert seconds == 2 * 0.5
    assert made.step_seconds == pytest.approx(plan().step_seconds + seconds)
    assert not any(one.what == WAITS for one in plan().cost.parts)


def test_it_is_counted_on_a_cpu_where_kernels_do_not_compute_all():
    """Layers of half a billion parameters are larger than kernels multiply, and a wide vocabulary is a large head."""
    large = replace(plan().workload, device="cpu", precision="float32")
    assert is_counted(large)
    assert not is_counted(replace(large, device="cuda"))
    assert not is_counted(replace(large, engine="separate"))
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8}
    small = {"model_type": "llama", "vocab_size": 1024, "num_key_value_heads": 8, **sizes}
    wide, narrow = {"vocab_size": 16384}, {"num_attention_heads": 16, "num_key_value_heads": 16}
    for changed, counted in (({}, False), (wide, True), (narrow, True), ({"vocab_size": 1000}, True)):
        architecture = architecture_of({**small, **changed})
        assert is_counted(replace(large, architecture=architecture)) == counted


def test_the_planned_waiting_is_near_what_was_measured():
    """In benchmarks/waiting.py the environment sees every turn, and turns differ greatly in length."""
    found = json.loads((ROOT / "benchmarks" / "results" / "waiting.json").read_text())
    turns = Turns(number=5, tokens=100, seconds=found["pause"], last_is_answered=True)
    for cell in found["cells"]:
        planned = 5 * cell["turn_seconds"] + waiting_seconds(turns, 64, 64, counted=cell["counted"])
        assert 1 / 1.5 < planned / sorted(cell["with"])[len(cell["with"]) // 2] < 1.5


# --- in words ---------------------------------------------------------------------------------------------------------


def test_the_plan_says_what_a_trajectory_is_and_what_was_assumed():
    told = plan(given_tokens=20, call_seconds=0.5).render()
    flat = " ".join(told.split())
    assert "2 prompts x 4 completions = 8 trajectories" in flat
    assert "(100 + 136 each: 3 turns of 32 with 20 given between two)" in flat
    assert "1.0 s of a step are spent waiting for tools and environments" in flat
    bare = " ".join(plan().render().split())
    assert "nothing is appended between two turns; set --given-length or sampling.max_trajectory_length" in bare
    assert "tools and environments answer immediately; set --call-seconds" in bare
    assert plan(mean_turns=2.0).to_json()["step"]["turns"]["mean_number"] == 2.0
    alone = make_plan(model="0.5b", algorithm="grpo", gpus="h100")
    assert alone.to_json()["step"]["turns"] is None


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"mean_turns": 4}, "allowed: 1 to 3, which is sampling.max_turns"),
        ({"mean_completion_tokens": 33}, "allowed: 1 to 32, which is sampling.max_completion_length"),
        ({"call_seconds": -1}, "call_seconds = -1 (--call-seconds)"),
    ],
)
def test_numbers_that_no_run_can_have_are_refused(how, says):
    with pytest.raises(ConfigError, match=r"^") as error:
        plan(**how)
    assert says in str(error.value)


def test_a_run_without_turns_has_none_to_speak_of():
    with pytest.raises(ConfigError, match="--call-seconds for a run whose answers have a single turn"):
        make_plan(model="0.5b", algorithm="grpo", gpus="h100", call_seconds=1.0)
