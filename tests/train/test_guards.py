"""Each guard stops the run for its own failure, gives a reason that helps to fix it, and lets a good run pass."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from posttrain.data.dataset import examples_batch
from posttrain.errors import GuardStop, NonFiniteError, RewardError
from posttrain.experience.feed import StepData, name_completions, name_examples
from posttrain.experience.group import Group, groups_of
from posttrain.functional.turns import turns_of
from posttrain.rewards.scores import ENVIRONMENT, Failure, Scores
from posttrain.train.guards import (
    FailingTools,
    Guards,
    Ignored,
    NonFinite,
    NoSignal,
    Truncation,
    Unmoved,
    Unscored,
)
from posttrain.types import Batch, Completion, Episode, Example, Experience, Outputs, Prompt

NAN, INF = float("nan"), float("inf")


def completion(length: int, finish_reason: str = "eos") -> Completion:
    return Completion(
        ids=(5,) * length, logprobs=(-0.5,) * length, versions=(0,) * length, finish_reason=finish_reason, text="ans"
    )


@pytest.fixture
def batch() -> Batch:
    """Two prompts with two completions each: one prompt token, then up to three trained tokens."""
    mask_BT = torch.tensor([[0, 1, 1, 1], [0, 1, 1, 0], [0, 1, 1, 1], [0, 1, 0, 0]]).bool()
    experience = Experience.from_rewards(
        torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        completion_mask_BT=mask_BT,
        old_logprobs_BT=torch.full((4, 4), -1.0),
    )
    return Batch.from_experience(experience, torch.where(mask_BT, 0.5, 0.0))


@pytest.fixture
def saved() -> list:
    return []


@pytest.fixture
def guard(saved) -> NonFinite:
    def save(step: int, rows) -> Path:
        saved.append((step, list(rows)))
        return Path("evidence/step.json")

    guard = NonFinite(save)
    prompts = [Prompt(index=4711, ids=(1,), text="1+1="), Prompt(index=12, ids=(1,), text="2+2=")]
    groups = groups_of(prompts, [[completion(3), completion(2)], [completion(3), completion(1)]], None)
    guard.watch(name_completions(groups))
    return guard


def with_number(value: float, row: int, t: int) -> Outputs:
    logprobs_BT = torch.full((4, 4), -1.0)
    logprobs_BT[row, t] = value
    return Outputs(logprobs_BT=logprobs_BT)


# --- numbers that are not finite -------------------------------------------------------------------------------------


def test_a_finite_loss_and_gradient_pass(guard, batch, saved):
    guard.observe_loss(torch.tensor(0.5), with_number(-1.0, 0, 1), batch, step=3)
    guard.observe_gradient(0.5, batch, step=3)
    assert not saved


@pytest.mark.parametrize(("loss", "text"), [(NAN, "nan"), (INF, "inf"), (-INF, "-inf")])
def test_a_loss_that_is_not_finite_names_step_prompt_completion_token_and_number(guard, batch, saved, loss, text):
    with pytest.raises(NonFiniteError) as caught:
        guard.observe_loss(torch.tensor(loss), with_number(-INF, row=2, t=3), batch, step=12)
    assert caught.value.given == (
        f"step 12: the loss is {text}; worst row: prompt 12, completion 1 of 2 "
        "(log-probability of trained token 3 is -inf)"
    )
    assert "No weight was changed; the offending rows are in evidence/step.json." in caught.value.fix
    assert caught.value.exit_code == 4
    ((step, (row,)),) = saved
    assert (step, row["prompt_index"], row["completion_number"], row["prompt"]) == (12, 12, 1, "2+2=")
    assert row["trained_tokens"]["log-probability"] == [-1.0, -1.0, -INF]
    assert row["trained_tokens"]["advantage"] == [0.5, 0.5, 0.5]


def test_the_row_keeps_its_name_when_the_batch_was_shuffled_and_split(guard, batch):
    micro = batch.rows([3, 1])
    with pytest.raises(
        NonFiniteError, match=r"prompt 4711, completion 2 of 2 \(log-probability of trained token 2 is nan"
    ):
        guard.observe_loss(
            torch.tensor(NAN), Outputs(logprobs_BT=with_number(NAN, 1, 2).logprobs_BT[:2]), micro, step=1
        )


def test_the_cause_is_named_before_its_consequences(guard, batch):
    """A reward of 1e39 made the advantage infinite, which made the log-probability of the next update NaN."""
    batch.advantages_BT[0, 1] = INF
    with pytest.raises(NonFiniteError, match="advantage of trained token 1 is inf") as caught:
        guard.observe_loss(torch.tensor(NAN), with_number(NAN, row=0, t=2), batch, step=1)
    assert "Look at the rewards of this prompt" in caught.value.fix


def test_a_number_outside_of_the_trained_tokens_is_not_blamed(guard, batch):
    outputs = with_number(NAN, row=1, t=1)
    outputs.logprobs_BT[0, 0] = NAN  # a prompt token
    with pytest.raises(NonFiniteError, match="prompt 4711, completion 2 of 2"):
        guard.observe_loss(torch.tensor(NAN), outputs, batch, step=1)


def test_when_each_number_is_finite_the_largest_is_shown(guard, batch):
    with pytest.raises(
        NonFiniteError, match=r"all .* are finite; the largest is in prompt 12, completion 2 of 2 \(.* is -3e\+30"
    ):
        guard.observe_loss(torch.tensor(INF), with_number(-3e30, row=3, t=1), batch, step=1)


def test_a_gradient_that_is_not_finite_is_traced_to_the_row_by_its_own_gradient(guard, batch, saved):
    norms = {0: 0.1, 1: 0.2, 2: NAN, 3: 0.3}
    with pytest.raises(
        NonFiniteError, match=r"step 5: the gradient norm is nan; worst row: prompt 12, completion 1 of 2"
    ):
        guard.observe_gradient(NAN, batch, step=5, row_norm=lambda row: norms[int(row.row_ids_B[0])])
    assert [row["what"] for row in saved[0][1]] == ["gradient norm"]


def test_rows_that_are_finite_alone_are_blamed_by_the_longest_gradient(guard, batch):
    norms = {0: 0.1, 1: 3e38, 2: 0.2, 3: 0.3}
    with pytest.raises(NonFiniteError, match=r"completion 2 of 2 \(gradient norm is 3e\+38\)"):
        guard.observe_gradient(INF, batch, step=5, row_norm=lambda row: norms[int(row.row_ids_B[0])])


def test_a_supervised_row_is_called_by_its_place_in_the_data_whichever_micro_batch_has_it():
    guard = NonFinite(lambda step, rows: Path("evidence"))
    examples = [Example(index=row, input_ids=(1, 2), completion_mask=(False, True)) for row in (77, 78, 79)]
    guard.watch(name_examples(examples))
    micro = examples_batch(examples, pad_id=0).rows(torch.tensor([1, 2]))
    outputs = Outputs(logprobs_BT=torch.tensor([[0.0, 0.0], [0.0, NAN]]))
    with pytest.raises(NonFiniteError, match="worst row: row 79 of the data"):
        guard.observe_loss(torch.tensor(NAN), outputs, micro, step=1)


def test_a_whole_batch_of_nan_is_found_and_16_rows_are_kept(saved):
    guard = NonFinite(lambda step, rows: saved.extend(rows) or Path("evidence"))
    batch = Batch(completion_mask_BT=torch.ones(40, 200, dtype=torch.bool), groups_B=torch.arange(40))
    with pytest.raises(NonFiniteError, match="worst row: row 0 of the step"):
        guard.observe_loss(torch.tensor(NAN), Outputs(logprobs_BT=torch.full((40, 200), NAN)), batch, step=1)
    assert len(saved) == 16


# --- no signal -------------------------------------------------------------------------------------------------------

ALL = torch.ones(2, 4, dtype=torch.bool)
ZEROS = torch.zeros(2, 4)


def test_steps_without_signal_warn_once_and_stop_with_the_reason_and_what_to_change():
    guard = NoSignal(steps=3)
    assert guard.observe(7, ZEROS, ALL) == (
        "step 7: all 8 answers got reward 0 in this step. The run stops after 3 such steps in a row"
    )
    assert guard.observe(8, ZEROS, ALL) is None
    with pytest.raises(GuardStop) as caught:
        guard.observe(9, ZEROS, ALL)
    assert (
        caught.value.given == "step 9: all 24 answers got reward 0 in the last 3 steps: the model can learn "
        "nothing from this"
    )
    assert caught.value.allowed == "fewer than guards.no_signal_steps = 3 such steps in a row"
    for hint in ("does the reward recognise a right answer", "use easier ones (data.train)", "sampling.group_size"):
        assert hint in caught.value.fix


def test_answers_that_are_all_right_need_harder_questions():
    with pytest.raises(GuardStop, match=r"all 8 answers got reward 1 (.|\n)*too easy for this model: use harder ones"):
        NoSignal(steps=1).observe(1, ZEROS + 1, ALL)


def test_groups_that_differ_only_from_each_other_have_no_signal_either():
    rewards_PG = torch.tensor([[0.0] * 4, [1.0] * 4])
    with pytest.raises(
        GuardStop, match="all 4 answers to a prompt got the same reward, between 0 and 1, for each prompt"
    ):
        NoSignal(steps=1).observe(1, rewards_PG, ALL)


def test_one_group_with_two_different_rewards_is_signal_enough():
    guard, rewards_PG = NoSignal(steps=2), ZEROS.clone()
    rewards_PG[1, 3] = 1.0
    for step in range(10):
        guard.observe(step, rewards_PG if step % 2 else ZEROS, ALL)
    assert guard.streak == 0


def test_a_difference_to_an_answer_without_reward_is_no_signal():
    rewards_PG, scored_PG = torch.tensor([[0.0, NAN, 0.0, 1.0]]), torch.tensor([[True, False, True, False]])
    with pytest.raises(GuardStop, match="all 2 answers got reward 0 in this step"):
        NoSignal(steps=1).observe(1, rewards_PG, scored_PG)


def test_with_one_answer_per_prompt_the_answers_of_the_step_are_compared():
    guard, scored_PG = NoSignal(steps=1), torch.ones(3, 1, dtype=torch.bool)
    assert guard.observe(1, torch.tensor([[0.0], [1.0], [0.0]]), scored_PG) is None
    with pytest.raises(GuardStop, match="all 3 answers got reward 0"):
        guard.observe(2, torch.zeros(3, 1), scored_PG)


def test_rewards_of_turns_that_differ_are_signal_even_if_their_sums_do_not():
    guard, first_PG = NoSignal(steps=1), ZEROS + 0.5
    first_PG[1, 2] = 0.25
    assert guard.observe(1, ZEROS + 1, ALL, turns=[first_PG, 1 - first_PG]) is None
    assert guard.observe(2, ZEROS + 1, ALL, turns=[ZEROS + 0.5, ZEROS + 0.5], inside=True) is None
    with pytest.raises(GuardStop, match="all 8 answers got reward 1"):
        guard.observe(3, ZEROS + 1, ALL, turns=[ZEROS + 0.5, ZEROS + 0.5])


# --- no gradient ----------------------------------------------------------------------------------------------------


def test_steps_without_a_gradient_warn_once_and_stop_whichever_way_they_came_about():
    guard = Unmoved(steps=3)
    assert guard.observe(4, 0.5) is None
    assert guard.observe(5, 0.0) == (
        "step 5: the gradient is exactly 0: the sampled and scored answers teach nothing. "
        "The run stops after 3 such steps in a row"
    )
    assert guard.observe(6, None) is None
    resumed = Unmoved(steps=3)
    resumed.load_state(json.loads(json.dumps(guard.state())))
    for one in (guard, resumed):
        with pytest.raises(GuardStop, match=r"step 7: no answer was trained on.*this is step 3 of this kind in a row"):
            one.observe(7, None)
    assert guard.observe(8, 1e-12) is None
    assert guard.streak == 0


def test_what_has_been_told_as_missing_signal_is_not_told_twice_and_what_has_not_is_told_later():
    guard = Unmoved(steps=4)
    assert guard.observe(1, 0.0, told=True) is None
    assert str(guard.observe(2, 0.0)).startswith("step 2: the gradient is exactly 0")
    assert guard.observe(3, 0.0) is None


def test_given_answers_may_be_learned_until_no_gradient_is_left():
    guard = Unmoved(steps=1, from_rewards=False)
    assert guard.observe(1, 0.0) is None
    with pytest.raises(GuardStop, match="no answer was trained on"):
        guard.observe(2, None)


# --- truncation ------------------------------------------------------------------------------------------------------

CUT = [completion(16, "length"), completion(16, "length"), completion(16, "length"), completion(8)]
ENDED = [completion(16, "length"), completion(16, "length"), completion(4), completion(8)]


def test_truncated_answers_warn_once_and_stop_with_the_setting_to_change():
    guard = Truncation(max_truncated=0.5, steps=2, max_completion_length=16)
    assert guard.observe(1, CUT) == (
        "step 1: 3 of 4 answers (75%) were cut at sampling.max_completion_length = 16 tokens; mean length 14. "
        "The run stops after 2 such steps in a row"
    )
    with pytest.raises(GuardStop) as caught:
        guard.observe(2, CUT)
    assert "mean length 14; 2 such steps in a row" in caught.value.given
    assert caught.value.allowed == "at most guards.max_truncated = 0.5"
    assert "Set sampling.max_completion_length = 32" in caught.value.fix


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("max_turns", "Raise sampling.max_turns"),
        ("max_trajectory_length", "Raise sampling.max_trajectory_length"),
        ("context", "Lower sampling.max_turns"),
    ],
)
def test_trajectories_that_are_cut_name_the_limit_that_cut_them(limit: str, said: str):
    episode = Episode(messages=(), turns=2, ended=limit)
    guard = Truncation(max_truncated=0.5, steps=1, max_completion_length=16)
    with pytest.raises(GuardStop, match=f"(?s)16 tokens or {limit} \\(2 of them\\).*{said}, or ask for shorter"):
        guard.observe(1, [replace(one, episode=episode) for one in CUT[:2]] + CUT[2:])


def test_exactly_the_allowed_share_of_truncated_answers_passes_and_ends_the_streak():
    guard = Truncation(max_truncated=0.5, steps=2, max_completion_length=16)
    for step in range(6):
        guard.observe(step, ENDED if step % 2 else CUT)
    assert guard.streak == 0


# --- unscored --------------------------------------------------------------------------------------------------------


def unscored(missing: int, total: int = 10) -> torch.Tensor:
    return torch.arange(total).reshape(2, -1) >= missing


def failure(label: str, kind: str, message: str, traceback: str = "") -> Failure:
    return Failure(label=label, prompt=7, completion=0, kind=kind, message=message, traceback=traceback)


def test_answers_without_reward_warn_once_up_to_the_limit():
    guard = Unscored(max_unscored=0.2)
    assert guard.observe(1, unscored(0)) is None
    warning = guard.observe(2, unscored(2), [failure("math", "timeout", "after 10 s")])
    assert warning.startswith(
        'step 2: 2 of 10 answers (20%) got no reward; the first error: reward "math", prompt 7, completion 1: timeout: '
        "after 10 s"
    )
    assert guard.observe(3, unscored(1)) is None


def test_too_many_answers_without_reward_stop_the_run_with_the_error_of_the_reward():
    failures = [failure("math", "exception", "ZeroDivisionError"), failure("other", "crash", "")]
    with pytest.raises(RewardError) as caught:
        Unscored(max_unscored=0.2).observe(4, unscored(3), failures)
    error = 'reward "math", prompt 7, completion 1: exception: ZeroDivisionError'
    assert caught.value.given == f"step 4: 3 of 10 answers (30%) got no reward; the first error: {error}"
    assert caught.value.allowed == "at most guards.max_unscored = 0.2"
    assert "rewards.timeout" in caught.value.fix


def test_an_environment_that_fails_is_named_with_its_line_and_its_settings():
    trace = 'File "my_env.py", line 9, in step\n    return BOARD[move]'
    with pytest.raises(RewardError) as caught:
        Unscored(max_unscored=0.2).observe(4, unscored(3), [failure(ENVIRONMENT, "exception", "KeyError: 4", trace)])
    assert "the environment, prompt 7, completion 1: exception: KeyError: 4" in caught.value.given
    assert caught.value.fix is not None
    assert "my_env.py" in caught.value.fix
    assert "Correct the environment, or raise environment.timeout" in caught.value.fix
    assert "reward function" not in caught.value.fix


# --- rewards that nothing reads --------------------------------------------------------------------------------------


def played(reward: float | None, *turns: float) -> Completion:
    episode = Episode(messages=(), turns=max(1, len(turns)), ended="done", reward=reward, turn_rewards=turns)
    return replace(completion(3), episode=episode)


@pytest.mark.parametrize("given", [[played(1.0)], [played(0.0)], [played(None, 0.5)], [played(None), played(1.0)]])
def test_rewards_of_an_environment_that_nothing_reads_are_reported_once(given):
    guard = Ignored()
    guard.missing = "environment"
    assert "add environment to rewards" in str(guard.observe(1, given))
    assert guard.observe(2, given) is None
    resumed = Ignored()
    resumed.load_state(guard.state())
    resumed.missing = "environment"
    assert resumed.observe(3, given) is None


@pytest.mark.parametrize("given", [[], [completion(3)], [played(None)]])
def test_an_environment_without_rewards_is_no_reason_to_warn(given):
    guard = Ignored()
    guard.missing = "environment"
    assert guard.observe(1, given) is None


def test_nothing_is_ignored_if_a_reward_reads_it():
    assert Ignored().observe(1, [played(1.0)]) is None


# --- tools whose calls all fail --------------------------------------------------------------------------------------


def called(tool: str, count: int, *, failed: int, failure: str = "") -> Completion:
    texts = ["error: NameError: name 'math'\nis not defined"] * failed + ["4"] * (count - failed)
    messages = tuple({"role": "tool", "name": tool, "content": text} for text in texts)
    episode = Episode(
        messages=messages, turns=1, ended="done", calls=(tool,) * count, errors=(tool,) * failed, failure=failure
    )
    return replace(completion(3), episode=episode)


def test_a_tool_that_always_fails_is_reported_once_with_its_first_error():
    guard = FailingTools()
    given = [called("look", 6, failed=6), called("look", 6, failed=6), called("fine", 9, failed=3), completion(3)]
    warning = str(guard.observe(1, given))
    assert "step 1: the last 12 calls of look all failed: error: NameError: name 'math'. The model" in warning
    assert "fine" not in warning
    resumed = FailingTools()
    resumed.load_state(json.loads(json.dumps(guard.state())))
    assert guard.observe(2, given) is None
    assert resumed.observe(2, given) is None
    assert "of fine all failed" in str(resumed.observe(3, [called("fine", 8, failed=8)])), "a tool may break later"


def test_failed_calls_of_a_tool_that_is_seldom_called_are_counted_over_steps():
    guard = FailingTools()
    assert [guard.observe(step, [called("look", 3, failed=3)]) for step in (1, 2)] == [None, None]
    assert guard.observe(3, []) is None
    assert "the last 9 calls of look" in str(guard.observe(4, [called("look", 3, failed=3)]))


@pytest.mark.parametrize(
    "given",
    [
        [called("look", 9, failed=8)],
        [called("unknown", 99, failed=99)],
        [called("look", 9, failed=9, failure="crash")],
        [called("look", 1, failed=1)],
    ],
)
def test_mistakes_of_the_model_are_no_reason_to_warn_of_a_tool(given):
    """Most calls failed, the model made up the tools, the environment failed instead, or a few calls failed."""
    assert FailingTools().observe(1, given) is None


# --- all of them -----------------------------------------------------------------------------------------------------


@pytest.fixture
def config() -> SimpleNamespace:
    limits = SimpleNamespace(max_unscored=0.2, no_signal_steps=3, max_truncated=0.5, truncated_steps=3)
    return SimpleNamespace(guards=limits, sampling=SimpleNamespace(max_completion_length=16))


def bad_step() -> StepData:
    experience = Experience.from_rewards(torch.zeros(1, 4), completion_mask_BT=torch.ones(4, 2))
    groups = groups_of([Prompt(index=0, ids=(1,), text="?")], [CUT], None)
    return StepData(experience=experience, version=0, groups=groups)


def test_a_critic_or_a_batch_mean_learns_from_prompts_that_differ():
    """The answers to a prompt are alike, but the prompts differ: no signal within groups, but one in the step."""
    rewards_PG = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    scored_PG = torch.ones(2, 2, dtype=torch.bool)
    assert "same reward" in str(NoSignal(5).observe(1, rewards_PG, scored_PG))
    assert NoSignal(5, within_groups=False).observe(1, rewards_PG, scored_PG) is None
    assert NoSignal(5, within_groups=False).observe(1, torch.ones(2, 2), scored_PG) is not None


def test_the_warnings_of_all_guards_come_together(config):
    guards = Guards.of(config, lambda step, rows: Path(), from_rewards=True)
    warnings = guards.observe(1, bad_step())
    assert ["cut at" in warnings[0], "all 4 answers got reward 0" in warnings[1]] == [True, True]
    assert guards.observe(2, bad_step()) == []


def discarded(index: int, scored: list[bool]) -> Group:
    """A group that dynamic sampling replaced: its answers got reward 0, or none where `scored` is False."""
    broken = failure("math", "exception", "KeyError: 4")
    scores = Scores(
        rewards_PG=[[0.0 if one else NAN for one in scored]],
        scored_PG=[scored],
        parts={"math": [[0.0 if one else None for one in scored]]},
        failures=() if all(scored) else (broken,),
        seconds={},
    )
    answers = tuple(completion(3) for _ in scored)
    return Group(prompt=Prompt(index=index, ids=(1,), text="?"), completions=answers, scores=scores)


@pytest.mark.parametrize("missing", [2, 3])
def test_answers_of_groups_that_are_sampled_and_not_trained_count_among_those_without_a_reward(config, missing):
    """All four answers of the trained group have a reward, and `missing` of eight answers of discarded groups none."""
    guards = Guards.of(config, lambda step, rows: Path(), from_rewards=True)
    lost = discarded(1, [False] * missing + [True] * (4 - missing))
    step = replace(bad_step(), discarded=[lost, discarded(2, [True] * 4)])
    if missing == 3:
        with pytest.raises(RewardError, match=r"3 of 12 answers \(25%\) got no reward; the first error: .*KeyError: 4"):
            guards.observe(1, step)
    else:
        assert guards.observe(1, step)[0].startswith("step 1: 2 of 12 answers (17%) got no reward")


TWO_TURNS_BT = torch.tensor([[1, 1, 0, 1], [1, 0, 1, 1], [1, 0, 0, 1], [1, 1, 0, 1]]).bool()


@pytest.mark.parametrize(
    ("rewards", "says"),
    [
        ([(0, 1), (0, 1), (0, 1), (0, 0)], None),
        ([(1, 0), (0, 1), (1, 0), (1, 0)], None),
        ([(0, 1)] * 4, "all 4 answers got reward 1"),
        ([(-0.1, 1)] * 4, "all 4 answers got reward 0.9"),
        ([(0, 0)] * 4, "all 4 answers got reward 0 "),
    ],
)
def test_equal_rewards_of_turns_are_no_signal_wherever_the_turns_end(config, rewards, says):
    """The rewards of whole completions are then 0, because those of tokens come in addition."""
    token_rewards_BT = torch.zeros(4, 4)
    for row, (first, second) in enumerate(rewards):
        token_rewards_BT[row, int(turns_of(TWO_TURNS_BT)[row].eq(0).nonzero().max())] = first
        token_rewards_BT[row, 3] = second
    experience = Experience.from_rewards(
        torch.zeros(1, 4), completion_mask_BT=TWO_TURNS_BT, token_rewards_BT=token_rewards_BT
    )
    guards = Guards.of(config, lambda step, rows: Path(), from_rewards=True)
    said = [one for one in guards.observe(1, replace(bad_step(), experience=experience)) if "reward" in one]
    assert (says in said[0]) if says else not said
    inside = replace(experience, token_rewards_BT=token_rewards_BT.masked_fill(turns_of(TWO_TURNS_BT) == 1, 0.5))
    again = Guards.of(config, lambda step, rows: Path(), from_rewards=True)
    assert not [one for one in again.observe(1, replace(bad_step(), experience=inside)) if "answers got reward" in one]


def test_a_tool_that_fails_is_reported_whatever_the_run_learns_from(config):
    step = bad_step()
    broken = replace(
        step, groups=groups_of([Prompt(index=0, ids=(1,), text="?")], [[called("look", 8, failed=8)]], None)
    )
    guards, resumed = (Guards.of(config, lambda step, rows: Path(), from_rewards=False) for _ in range(2))
    [warning] = guards.observe(1, broken)
    assert "calls of look all failed" in warning
    resumed.load_state(json.loads(json.dumps(guards.state())))
    assert resumed.observe(2, broken) == guards.observe(2, broken) == [], "a resumed run does not warn again"


def test_a_resumed_run_stops_where_the_other_would_have_stopped(config):
    guards = Guards.of(config, lambda step, rows: Path(), from_rewards=True)
    for step in (1, 2):
        guards.observe(step, bad_step())
    resumed = Guards.of(config, lambda step, rows: Path(), from_rewards=True)
    resumed.load_state(json.loads(json.dumps(guards.state(), allow_nan=False)))
    assert resumed.state() == guards.state()
    stops = []
    for one in (guards, resumed):
        with pytest.raises(GuardStop) as caught:
            one.no_signal.observe(3, torch.zeros(1, 4), torch.ones(1, 4).bool())
        stops.append(str(caught.value))
    assert stops[0] == stops[1]
    assert "all 12 answers got reward 0 in the last 3 steps" in stops[0]


def test_the_state_before_the_first_step_is_json():
    state = NoSignal(steps=3).state()
    fresh = NoSignal(steps=3)
    fresh.load_state(json.loads(json.dumps(state, allow_nan=False)))
    assert (fresh.lowest, fresh.highest) == (math.inf, -math.inf)


def test_the_loop_reaches_the_non_finite_guard_through_the_bundle(config, batch):
    guards = Guards.of(config, lambda step, rows: Path("evidence"))
    with pytest.raises(NonFiniteError, match="the loss is nan"):
        guards.non_finite.observe_loss(torch.tensor(NAN), with_number(NAN, 0, 1), batch, 1)
    with pytest.raises(NonFiniteError, match="the gradient norm is inf"):
        guards.non_finite.observe_gradient(INF, batch, 1)
