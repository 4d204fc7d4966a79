"""Rewards of single tokens: declared by the function, one number per token, from the worker to the advantage."""

import json
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
import torch
from tests.rewards.rollouts import completion, prompt

import posttrain
from posttrain.algorithms import ALGORITHMS, ComposedPolicyGradient
from posttrain.errors import ConfigError, RewardError
from posttrain.experience.assemble import assemble, with_rewards
from posttrain.experience.group import Group, groups_of
from posttrain.rewards import Reward, RewardSet, Scores, build_rewards
from posttrain.types import Completion

FUNCTIONS = """
def capitals(completion, completion_ids):
    return [float(letter.isupper()) for letter in completion]

async def of_all(completions, completion_ids):
    return [capitals(text, ids) for text, ids in zip(completions, completion_ids)]

def arrays(completions):
    import numpy
    return [numpy.array(capitals(text, None)) for text in completions]

def sometimes(completion):
    if completion == "no":
        return None
    if completion == "raise":
        raise ValueError("no idea")
    return capitals(completion, None)

def wrong(completion):
    return {"short": [1.0], "nan": [0.0, float("nan"), 0.0], "inf": [float("inf")] * 3, "none": [0.0, None, 0, 0],
            "huge": [1e30] * 4, "number": 0.5, "text": ["a"] * 4}[completion]

for function in (capitals, of_all, arrays, sometimes, wrong):
    function.per_token = True

def brief(completion):
    return 0.5

def undeclared(completion):
    return [1.0] * len(completion)

def by_letter(prompt, completion, completion_ids, answer, **row):
    right = [a == b for a, b in zip(completion, answer)]
    return [float(place < len(right) and right[place]) for place in range(len(completion_ids))]

by_letter.per_token = True
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("rewards") / "token_rewards.py"
    path.write_text(FUNCTIONS)
    return path


def scored(rewards: RewardSet, *groups: list[str]) -> tuple[list[Group], Scores]:
    prompts = [prompt(index) for index in range(len(groups))]
    completions = [[completion(text) for text in texts] for texts in groups]
    scores = rewards.score(prompts, completions)
    return groups_of(prompts, completions, scores), scores


def test_each_form_of_a_function_gives_its_tokens_numbers_and_their_sum_is_the_reward(file: Path):
    def closure(completion):
        return [float(letter.isupper()) for letter in completion]

    closure.per_token = True
    names = ("capitals", "of_all", "arrays")
    with build_rewards([*(f"{file}:{name}" for name in names), closure]) as rewards:
        _, scores = scored(rewards, ["aBC", ""], ["D", "e"])
    assert scores.tokens == {name: [[[0, 1, 1], []], [[1], [0]]] for name in (*names, "closure")}
    assert scores.parts == {name: [[2, 0], [1, 0]] for name in (*names, "closure")}
    assert scores.rewards_PG == [[8, 0], [4, 0]]


def test_tokens_stay_with_their_group_through_the_queue_and_a_checkpoint(file: Path):
    with build_rewards([f"{file}:sometimes"]) as rewards:
        groups, scores = scored(rewards, ["aBC", "no"], ["raise", "E"])
    assert scores.tokens == {"sometimes": [[[0, 1, 1], None], [None, [1]]]}
    assert [group.scores.tokens for group in groups if group.scores] == [
        {"sometimes": [[[0, 1, 1], None]]},
        {"sometimes": [[None, [1]]]},
    ]
    for group in groups:
        assert group.scores is not None
        back = Group.from_json(json.loads(json.dumps(group.to_json())), group.prompt).scores
        assert back is not None
        assert back.tokens == group.scores.tokens
    assert Scores.joined([group.scores for group in groups if group.scores]).tokens == scores.tokens


def test_in_the_experience_tokens_have_theirs_and_the_completion_what_is_left(file: Path):
    entries = [
        Reward(function=f"{file}:brief", weight=3.0),
        Reward(function=f"{file}:capitals", weight=2.0, gate={"label": "brief", "at_least": 0.5}),
        Reward(function=f"{file}:arrays", label="shut", gate="brief"),
        Reward(function=f"{file}:of_all", weight=0.0),
    ]
    with build_rewards(entries) as rewards:
        groups, scores = scored(rewards, ["aBC", "d"], ["E", "fG"])
        weights = [component.weight for component in rewards.components]
    experience = with_rewards(assemble(groups, pad_id=0), groups, weights)
    assert scores.rewards_PG == [[5.5, 1.5], [3.5, 3.5]]
    assert experience.rewards_PG.tolist() == [[1.5, 1.5], [1.5, 1.5]]
    assert experience.token_rewards_BT is not None
    assert experience.token_rewards_BT[:, 2:].tolist() == [[0, 2, 2], [0, 0, 0], [2, 0, 0], [0, 2, 0]]
    whole_B = experience.rewards_PG.reshape(-1) + experience.token_rewards_BT.sum(dim=-1)
    assert whole_B.tolist() == [reward for row in scores.rewards_PG for reward in row]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("short", "1 numbers for 5 tokens"),
        ("nan", "nan for token 2"),
        ("inf", "inf for token 1"),
        ("none", "None for token 2"),
        ("huge", r"1e\+30 for token 1"),
        ("number", r"0\.5"),
        ("text", "'a' of type str"),
    ],
)
def test_what_is_no_number_per_token_stops_the_step_and_names_the_completion(file: Path, text: str, problem: str):
    groups = [[completion(text), completion(text)]]
    with build_rewards([f"{file}:wrong"]) as rewards, pytest.raises(RewardError) as caught:
        rewards.score([prompt(4711)], groups)
    assert caught.match(f'(?s)reward "wrong", which gives.*returned {problem}')
    assert caught.match(rf'(?s)for prompt 4711, completion 1 of 2 \("{text}"\)')


def test_a_list_that_was_not_declared_is_refused_and_says_how_to_declare_it(file: Path):
    with build_rewards([f"{file}:undeclared"]) as rewards, pytest.raises(RewardError, match="per_token = True"):
        scored(rewards, ["abc"])


def test_what_an_environment_wrote_has_no_reward_of_its_own(file: Path):
    given = Completion(ids=(65, 66), logprobs=(-1.0,), versions=(0,), finish_reason="eos", text="AB", given=((1, 2),))
    with build_rewards([f"{file}:capitals"]) as rewards, pytest.raises(RewardError, match="did not draw"):
        rewards.score([prompt(0)], [[given]])
    late = Completion(ids=(65, 66), logprobs=(-1.0,), versions=(0,), finish_reason="eos", text="Ab", given=((1, 2),))
    with build_rewards([f"{file}:capitals"]) as rewards:
        groups = groups_of([prompt(0)], [[late]], rewards.score([prompt(0)], [[late]]))
    experience = with_rewards(assemble(groups, pad_id=0), groups, [1.0])
    assert experience.token_rewards_BT is not None
    assert experience.token_rewards_BT.tolist() == [[0, 0, 1, 0]]


def config(file: Path, folder: Path, algorithm: object, **more: object) -> dict[str, object]:
    return {
        "model": {"path": "tiny:sort", "device": "cpu"},
        "algorithm": algorithm,
        "data": {"train": "task:sort"},
        "rewards": [{"function": f"{file}:by_letter"}],
        "sampling": {"group_size": 4, "max_completion_length": 8},
        "train": {"steps": 2, "prompts_per_step": 4, "learning_rate": 1e-3},
        "evaluation": {"prompts": 8, "samples": 0},
        "report": False,
        "output": str(folder),
        **more,
    }


ABLE = [
    {"name": "reinforce", "baseline": "none"},
    "reinforce_plus_plus",
    "remax",
    "ppo",
    {"name": "policy_gradient", "baseline": "optimal_token", "normalisation": "none", "kl": "none"},
]


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(each, marks=() if each == ABLE[0] else pytest.mark.slow) for each in ABLE],
    ids=lambda a: a if isinstance(a, str) else a["name"],
)
def test_a_run_gives_each_token_the_return_from_it_on(file: Path, tmp_path: Path, algorithm: object):
    run = posttrain.train(config(file, tmp_path / "run", algorithm))
    rows = parquet.read_table(run.folder / "rollouts" / "step-000001.parquet").to_pylist()
    assert all(len(row["token_rewards/by_letter"]) == len(row["completion_ids"]) for row in rows)
    assert [sum(row["token_rewards/by_letter"]) for row in rows] == pytest.approx([row["reward"] for row in rows])
    assert any(len(set(row["advantages"])) > 1 for row in rows), "the tokens of a completion differ"
    if algorithm == ABLE[0]:  # no baseline is subtracted
        for row in rows:
            rewards_T = torch.tensor(row["token_rewards/by_letter"])
            assert row["advantages"] == pytest.approx(rewards_T.flip(0).cumsum(0).flip(0).tolist())


def test_an_algorithm_with_one_advantage_per_completion_refuses_them_before_the_first_step(file: Path, tmp_path: Path):
    with pytest.raises(ConfigError) as caught:
        posttrain.train(config(file, tmp_path / "run", "grpo"))
    assert caught.match('reward "by_letter" gives each token a reward, but grpo has one advantage per completion')
    assert caught.match("allowed: reinforce, remax, reinforce_plus_plus, ppo, or policy_gradient with baseline")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_what_the_algorithms_declare_is_what_they_do():
    """An algorithm that reads no token rewards refuses plain arrays of them as well."""
    able = {key for key, cls in ALGORITHMS.items() if cls.reads_token_rewards is True}
    assert able == {"reinforce", "remax", "reinforce_plus_plus", "ppo"}
    declared = {
        name: ComposedPolicyGradient(baseline=name, normalisation="none", kl="none").reads_token_rewards
        for name in ("none", "batch_mean", "moving_average", "greedy", "critic", "optimal_token", "group_mean",
                     "leave_one_out", "runner_up", "length_weighted", "constant", "pass_at_k", "teacher")
    }  # fmt: skip
    assert [name for name, reads in declared.items() if reads] == list(declared)[:6]
