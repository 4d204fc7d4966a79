"""Environments of the package verifiers (0.4 or later): their tasks as data, their rewards as a reward.

    data: {train: task:environment/gsm8k_v1}
    rewards: [{function: posttrain.tasks.environments.score, timeout: 60}]

verifiers looks up the name `gsm8k_v1`: it is an installed package that exports a Taskset. An episode here is one prompt
and one answer. An environment is therefore refused, with the reason, if it has tools, users or several agents, or if
its setup or grading needs a container.

A row contains its task's data. The reward therefore needs the package that defines the task, but not its dataset.
Importing verifiers takes seconds. It happens when this file is imported, which no deadline counts.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from posttrain.errors import DataError
from posttrain.tasks.base import PATIENCE, split_of
from posttrain.verify.verdict import Verdict

try:
    import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]
    from verifiers.v1 import graph, state, trace, types  # pyright: ignore[reportMissingImports]
    from verifiers.v1.utils import generic, loaders  # pyright: ignore[reportMissingImports]

    MISSING = ""
except ImportError as error:
    MISSING = str(error)


@dataclass(frozen=True, kw_only=True)
class EnvironmentTask:
    """The tasks of one single-turn environment, as a `RowSource`."""

    name: str

    @staticmethod
    def named(name: str) -> EnvironmentTask:
        """Raises `DataError` if verifiers or the environment is missing, or if it is not a single-turn environment."""
        _taskset(name)
        return EnvironmentTask(name=name)

    def rows(self, n: int, *, seed: int = 0, split: str = "train") -> list[dict[str, Any]]:
        """The first `n` different prompts of a split, or fewer if there are fewer, in the order of the environment.

        The text of a prompt decides to which split it belongs, as for the built-in tasks. `seed` has no effect.
        """
        found: dict[str, dict[str, Any]] = {}
        misses = 0
        for task in _taskset(self.name):
            if len(found) == n or misses == PATIENCE:
                break
            prompt = _prompt(self.name, task.data)
            if split_of(str(prompt)) == split and str(prompt) not in found:
                data = task.data.model_dump(mode="json", exclude_none=True)
                answer = {"answer": data["answer"]} if "answer" in data else {}
                found[str(prompt)] = {"prompt": prompt, **answer, "environment": {"name": self.name, "data": data}}
                misses = 0
            else:
                misses += 1
        if not found:
            raise DataError(
                given=f"no prompt of the environment {self.name!r} falls into the split {split}",
                allowed="environments with some tens of tasks, of which a fifth is held out",
                fix="Use an environment with more tasks. If only held-out rows are missing, set data.eval.",
            )
        return list(found.values())


def score(completion: str, environment: Mapping[str, Any], truncated: bool = False) -> Verdict:
    """A reward: the weighted sum of the environment's own rewards; `correct` if each of them is 1.

    Metrics without a weight are left out. An exception in the environment leaves the completion unscored.
    """
    taskset = _taskset(environment["name"])
    kind = taskset.task_type()
    task = kind(kind.data_type().model_validate(environment["data"]), taskset.config.task)
    record = _record(task, completion, truncated)
    asyncio.run(task.score(record))
    missing = [name for name, reward in record.rewards.items() if reward is None]
    if missing:
        return Verdict(None, "error", detail=f"the environment did not compute {', '.join(missing)}")
    value = float(record.reward)
    full = sum(reward.weight for reward in record.rewards.values() if reward.weight > 0)
    reason = "correct" if value >= full else "partial" if value > 0 else "wrong"
    parts = ", ".join(f"{name} {reward.score:g} × {reward.weight:g}" for name, reward in record.rewards.items())
    return Verdict(value, reason, extracted=record.last_reply, detail=parts)


def _record(task: Any, completion: str, truncated: bool) -> Any:
    """The trace that verifiers would have recorded for an episode with this one answer."""
    asked = [types.SystemMessage(content=task.data.system_prompt)] if task.data.system_prompt else []
    prompt = task.data.prompt
    asked += [types.UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt)
    nodes = [
        graph.MessageNode(parent=place - 1 if place else None, message=message) for place, message in enumerate(asked)
    ]
    answer = types.AssistantMessage(content=completion)
    nodes.append(graph.MessageNode(parent=len(nodes) - 1, message=answer, sampled=True))
    call = trace.ModelCall(node=len(nodes) - 1, finish_reason="length" if truncated else "stop")
    return trace.Trace(
        task=trace.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        state=state.state_cls(type(task))(),
        agent=trace.AgentInfo(config=vf.AgentConfig()),
        nodes=nodes,
        calls=[call],
        is_completed=True,
        ok=True,
    )


@functools.lru_cache(maxsize=16)
def _taskset(name: str) -> Any:
    """The environment's tasks. DataError if an episode cannot be one prompt and one answer."""
    if MISSING:
        raise DataError(
            given=f"the environment {name!r} needs the package verifiers, 0.4 or later ({MISSING})",
            allowed="built-in tasks and rewards without it",
            fix='pip install "posttrain[environments]"',
        )
    try:
        kind = loaders.taskset_class(name)
        environment = loaders.environment_class(name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise DataError(
            given=f"there is no environment {name!r}: {error}",
            allowed="an installed package that exports one Taskset of verifiers",
            fix="Install it (`prime env install`, or pip), or put its folder on PYTHONPATH.",
        ) from None
    taskset = kind((generic.concrete_type(kind, vf.TasksetConfig) or vf.TasksetConfig)(id=name))
    obstacle = next(_obstacles(taskset, environment), None)
    if obstacle is not None:
        raise _several_turns(name, obstacle)
    return taskset


def _obstacles(taskset: Any, environment: type) -> Iterator[str]:
    """The reasons why an episode is not one prompt, one answer, and a score for that answer."""
    kind, config = taskset.task_type(), taskset.config
    if environment is not loaders.SingleAgentEnv:
        yield f"it plays its episodes itself ({environment.__name__})"
    if taskset.toolsets(config) or kind.toolsets(config.task):
        yield "it has tools"
    if kind.NEEDS_CONTAINER:
        yield "it needs a container"
    for hook in ("setup", "finalize", "stage_verifier"):
        if getattr(kind, hook) is not getattr(vf.Task, hook):
            yield f"it prepares a box ({kind.__name__}.{hook})"
    sample = kind(kind.data_type().model_construct(), config.task)
    rewards = [*sample.hooks("reward"), *(judge.score for judge in sample.plugged_judges())]
    if not rewards:
        yield "it has no rewards"
    for reward in rewards:
        if _needs_runtime(reward):
            yield f"its reward {reward.__name__} needs a box to run in"


def _needs_runtime(reward: Callable[..., Any]) -> bool:
    parameter = inspect.signature(reward).parameters.get("runtime")
    return parameter is not None and parameter.default is parameter.empty


def _prompt(name: str, data: Any) -> str | list[dict[str, str]]:
    """The prompt as text, or as messages if there is a system prompt or a conversation."""
    if data.prompt is None:
        raise _several_turns(name, "a user opens its conversations")
    if isinstance(data.prompt, str) and not data.system_prompt:
        return data.prompt
    said = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    if isinstance(data.prompt, str):
        return [*said, {"role": "user", "content": data.prompt}]
    for message in data.prompt:
        if message.role not in ("system", "user", "assistant") or not isinstance(message.content, str):
            raise _several_turns(name, f"its prompts hold more than text (a message of the role {message.role})")
        said.append({"role": message.role, "content": message.content})
    return said


def _several_turns(name: str, obstacle: str) -> DataError:
    return DataError(
        given=f"the environment {name!r} cannot be answered once: {obstacle}",
        allowed="environments of one prompt and one answer, whose rewards look at the answer alone",
        fix="Use another environment, or write its reward as a function of the completion and the columns.",
    )
