"""Environments and a tool as users of other libraries write them: nothing here knows posttrain."""

from __future__ import annotations

TRL = '''
import random


def look(place: str) -> str:
    """Look somewhere.

    Args:
        place: Where to look.

    Returns:
        What is there.
    """
    return {"x": "a cat"}.get(place, "nothing")


class Counter:
    """As TRL's documentation of environment_factory has it."""

    def reset(self, **kwargs) -> str | None:
        self.goal, self.value = kwargs.get("goal", 2), 0
        return f" h {self.goal}"

    def increment(self, step: int) -> int:
        """Increment the counter.

        Args:
            step: By how much.

        Returns:
            The counter.
        """
        if step < 0:
            raise ValueError("only up")
        self.value += step
        return self.value

    async def peek(self) -> int:
        """Read the counter.

        Returns:
            The counter.
        """
        return self.value

    def _hidden(self) -> None: ...

    @property
    def broken(self) -> int:
        raise RuntimeError("a property is no tool")

    def get_reward(self) -> float:
        return float(self.value == self.goal)


class Silent:
    def reset(self, **kwargs):
        return None


def factory():
    return Counter()
'''

VERIFIERS_V1 = '''
import verifiers.v1 as vf

__all__ = ["Letters", "Game"]


class Data(vf.TaskData):
    answer: str


class Letter(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward
    async def found(self, trace) -> float:
        return float(trace.last_reply.strip() == self.data.answer)

    @vf.reward(weight=0.25)
    async def quick(self, trace) -> float:
        return float(trace.num_turns < 3)

    @vf.metric
    async def turns(self, trace) -> float:
        return float(trace.num_turns)


class Letters(vf.Taskset[Letter, vf.TasksetConfig]):
    def load(self):
        for number in range(64):
            letter = "abcdefgh"[number % 8]
            yield Letter(Data(prompt=f"{'abcdefgh'[number // 8]} {letter}", answer=letter), self.config.task)


class GameConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()
    turns: int = 4


class Game(vf.Env[GameConfig]):
    """A letter is to be guessed; "<" and ">" say on which side it is."""

    async def run(self, task, agents):
        async with agents.player.interaction(task) as player:
            said = await player.turn()
            for _ in range(self.config.turns - 1):
                word = said.last_reply.strip()
                if said.terminated or word == task.data.answer:
                    break
                said = await player.turn("<" if word < task.data.answer else ">")
'''

VERIFIERS_V1_TOOLS = '''
import verifiers.v1 as vf

__all__ = ["Places"]


class Guide(vf.Toolset[vf.ToolsetConfig, vf.State]):
    @vf.tool
    async def look(self, place: str) -> str:
        """Look somewhere."""
        return {"x": "a cat"}.get(place, "nothing")


class Data(vf.TaskData):
    answer: str = "a"


class Place(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward
    async def looked(self, trace) -> float:
        return float(len(trace.tool_messages) > 0)

    @classmethod
    def toolsets(cls, config):
        return [Guide(vf.ToolsetConfig())]


class Places(vf.Taskset[Place, vf.TasksetConfig]):
    def load(self):
        for number in range(64):
            yield Place(Data(prompt="abcdefgh"[number // 8] + " " + "abcdefgh"[number % 8]), self.config.task)


if __name__ == "__main__":
    Guide.run()
'''

VERIFIERS_V0 = '''
import verifiers as vf
from datasets import Dataset


class Guess(vf.MultiTurnEnv):
    """A letter is to be guessed; "<" and ">" say on which side it is."""

    async def setup_state(self, state, **kwargs):
        state["found"] = False
        return state

    @vf.stop
    async def is_found(self, state, **kwargs) -> bool:
        said = state["trajectory"][-1]["completion"][-1].content if state["trajectory"] else ""
        state["found"] = (said or "").strip() == state["answer"]
        return state["found"]

    async def env_response(self, messages, state, **kwargs):
        said = (messages[-1].content or "").strip()
        return [{"role": "user", "content": "<" if said < state["answer"] else ">"}]


async def found(state, **kwargs) -> float:
    return float(state["found"])


async def brief(completion, **kwargs) -> float:
    return float(len(completion) < 4)


def load_environment(max_turns: int = 4, **kwargs) -> vf.Environment:
    letters = "abcdefgh"
    rows = [
        {"prompt": [{"role": "user", "content": f"{letters[n // 8]} {letters[n % 8]}"}], "answer": letters[n % 8]}
        for n in range(64)
    ]
    rubric = vf.Rubric(funcs=[found, brief], weights=[1.0, 0.25])
    return Guess(dataset=Dataset.from_list(rows), rubric=rubric, max_turns=max_turns, **kwargs)
'''

VERIFIERS_V0_TOOLS = '''
import verifiers as vf
from datasets import Dataset


def look(place: str) -> str:
    """Look somewhere.

    Args:
        place: Where to look.
    """
    return {"x": "a cat"}[place]


async def looked(completion, **kwargs) -> float:
    return float(any(message.role == "tool" for message in completion))


def load_environment(**kwargs) -> vf.Environment:
    rows = [
        {"prompt": [{"role": "user", "content": f"{'abcdefgh'[n // 8]} {'abcdefgh'[n % 8]}"}], "answer": ""}
        for n in range(64)
    ]
    return vf.ToolEnv(dataset=Dataset.from_list(rows), tools=[look], rubric=vf.Rubric(funcs=[looked]), max_turns=4)
'''
