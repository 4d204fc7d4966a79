"""Environments of the verifiers package and rows of reasoning-gym: their tasks as data, their scores as rewards."""

from __future__ import annotations

import os
import sys

import pytest
from tests.rewards.rollouts import completion, prompt

from posttrain.errors import DataError
from posttrain.rewards import Reward, build_rewards
from posttrain.tasks.base import split_of
from posttrain.tasks.catalogue import find_task

HEAD = """
import verifiers.v1 as vf

__all__ = ["Capitals"]

class Data(vf.TaskData):
    answer: str

class Capital(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace) -> float:
        if "crash" in trace.last_reply:
            raise RuntimeError("the environment broke")
        return float(self.data.answer in trace.last_reply)

    @vf.reward(weight=0.5)
    async def brief(self, task, trace) -> float:
        return float(len(trace.last_reply) < 20 and not trace.is_truncated)

    @vf.metric
    async def length(self, trace) -> float:
        return float(len(trace.last_reply))
"""
TASKSET = """
class Capitals(vf.Taskset[Capital, vf.TasksetConfig]):
    def load(self):
        for number in range(60):
            yield Capital(Data(prompt=f"Capital number {number}?", answer=f"city {number}", SYSTEM), self.config.task)
"""
OBSTACLES = {
    "it needs a container": "class Capital(Capital):\n    NEEDS_CONTAINER = True\n",
    r"it prepares a box \(Capital.setup\)": "class Capital(Capital):\n    async def setup(self, trace, runtime): ...\n",
    "its reward ran needs a box to run in": "class Capital(Capital):\n    @vf.reward\n"
    "    async def ran(self, trace, runtime) -> float:\n        return 1.0\n",
    "it has tools": "class Capital(Capital):\n    @classmethod\n    def toolsets(cls, config): return ['a tool']\n",
}


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Write an environment that verifiers finds, here and in reward workers; returns its name."""
    pytest.importorskip("verifiers.v1", reason="the extra [environments] is not installed")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, *, more: str = "", system: str = "") -> str:
        code = HEAD + more + TASKSET.replace(", SYSTEM", f", system_prompt={system!r}" if system else "")
        (tmp_path / f"{name}.py").write_text(code)
        return name

    return write


def test_the_tasks_of_an_environment_are_rows_of_two_splits(environment):
    task = find_task(f"task:environment/{environment('capitals_a')}".removeprefix("task:"))
    train, heldout = task.rows(20), task.rows(5, split="eval")
    assert train == task.rows(20)
    assert not {row["prompt"] for row in train} & {row["prompt"] for row in heldout}
    number = train[0]["prompt"].removeprefix("Capital number ").removesuffix("?")
    assert train[0]["answer"] == f"city {number}"
    whole = task.rows(1000) + task.rows(1000, split="eval")
    assert len(whole) == 60


def test_an_environment_without_a_held_out_task_says_so(environment, tmp_path):
    name = environment("one_city")
    path = tmp_path / "one_city.py"
    path.write_text(path.read_text().replace("range(60)", "range(1)"))
    rows_of = find_task(f"environment/{name}").rows
    full, empty = ("train", "eval") if split_of("Capital number 0?") == "train" else ("eval", "train")
    assert len(rows_of(5, split=full)) == 1
    with pytest.raises(DataError, match=f"no prompt of the environment '{name}' falls into the split {empty}"):
        rows_of(5, split=empty)


def test_a_system_prompt_makes_the_prompt_a_conversation(environment):
    row = find_task(f"environment/{environment('capitals_b', system='Be brief.')}").rows(1)[0]
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]


def test_the_rewards_of_an_environment_are_a_reward_in_a_worker(environment):
    row = find_task(f"environment/{environment('capitals_c')}").rows(1)[0]
    own = Reward(function="posttrain.tasks.environments.score", label="own", timeout=60)
    asked = prompt(0, row["prompt"], environment=row["environment"])
    texts = [row["answer"], f"I think that it must be {row['answer']}.", "no", "I do not know any of them.", "crash"]
    with build_rewards([own]) as rewards:
        found = rewards.score([asked], [[completion(text) for text in texts]])
    assert found.parts["own"] == [[1.5, 1.0, 0.5, 0.0, None]]
    reasons = [verdict.reason for verdict in found.verdicts["own"][0]]
    assert reasons == ["correct", "partial", "partial", "wrong", "error"]
    assert found.verdicts["own"][0][0].detail == "brief 1 × 0.5, right 1 × 1"
    assert "the environment broke" in found.failures[0].message


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_what_cannot_be_answered_once_is_refused_with_what_is_in_the_way(environment, obstacle):
    name = environment(f"capitals_{list(OBSTACLES).index(obstacle)}", more=OBSTACLES[obstacle])
    with pytest.raises(DataError, match=f"'{name}' cannot be answered once: {obstacle}.*; allowed: .*one answer"):
        find_task(f"environment/{name}")


def test_an_environment_that_plays_its_episodes_itself_is_refused(environment):
    name = environment("played", more="class Play(vf.Env):\n    async def run(self, task, agents): ...\n")
    path = next(folder for folder in sys.path if os.path.exists(f"{folder}/played.py"))
    with open(f"{path}/played.py", "a") as file:
        file.write('__all__ += ["Play"]\n')
    with pytest.raises(DataError, match=r"it plays its episodes itself \(Play\)"):
        find_task(f"environment/{name}")


def test_an_environment_that_is_not_there_is_named(environment):
    with pytest.raises(DataError, match="there is no environment 'atlantis': taskset 'atlantis' not found"):
        find_task("environment/atlantis")


def test_without_verifiers_the_extra_is_named(monkeypatch):
    from posttrain.tasks import environments

    monkeypatch.setattr(environments, "MISSING", "No module named 'verifiers'")
    environments._taskset.cache_clear()
    with pytest.raises(DataError, match=r'needs the package verifiers, .*\n  pip install "posttrain\[environments\]"'):
        find_task("environment/gsm8k")


# reasoning-gym


@pytest.fixture
def gym():
    return pytest.importorskip("reasoning_gym", reason="the extra [tasks] is not installed")


def test_rows_that_reasoning_gym_wrote_are_scored_by_its_own_code(gym):
    items = list(gym.create_dataset("chain_sum", size=5, seed=3))
    own = Reward(function="posttrain.tasks.reasoning_gym.score", label="own", timeout=60)
    asked = [prompt(n, item["question"], **item) for n, item in enumerate(items)]
    groups = [[completion(f"<answer>{item['answer']}</answer>"), completion("")] for item in items]
    with build_rewards([own]) as rewards:
        found = rewards.score(asked, groups)
    assert found.parts["own"] == [[1.0, 0.0]] * 5
    assert [verdict.reason for verdict in found.verdicts["own"][0]] == ["correct", "no_answer"]


def test_several_different_tags_are_ambiguous(gym):
    from posttrain.tasks.reasoning_gym import score

    item = gym.create_dataset("chain_sum", size=1, seed=3)[0]
    right = f"<answer>{item['answer']}</answer>"
    assert score(f"{right} {right}", **_columns(item)).reason == "correct"
    assert score(f"{right} <answer>0</answer>", **_columns(item)).reason == "ambiguous"
    assert score(f"<think>{right}</think> <answer>x</answer>", **_columns(item)).score < 1
    with pytest.raises(DataError, match="metadata names the generator None"):
        score("1", question="?", answer="1", metadata={})


def _columns(item):
    return {name: item[name] for name in ("question", "answer", "metadata")}
