"""Environments of verifiers 0.4: a Taskset, an Env that runs its tasks, and seats for agents.

The policy takes the only seat, or the seat that the setting `trains` names. Other seats need a model of their own
(`settings: {user: {model: ..., client: {base_url: ...}}}`). If a seat asks for no harness, or for `null` (a chat with
the task's tools), that chat runs in the trajectory's process (verifiers_loop.py), and nothing is installed. verifiers
runs any other harness unchanged, in the runtime that the settings name.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from posttrain.episodes.adapters.played import KEY, Worth
from posttrain.errors import ConfigError

LOOP = "posttrain_loop"
"""The name under which verifiers finds our harness."""


def find(name: str, settings: Mapping[str, Any]) -> Current:
    """Return the environment. Raises verifiers' own error if there is none or if it refuses the settings."""
    return Current(name, settings)


class Current:
    """An environment of the class `vf.Env`. Implements `Played`."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]
        from verifiers.v1.utils import generic, loaders  # pyright: ignore[reportMissingImports]

        self._name, self._settings = name, dict(settings)
        tasks = loaders.taskset_class(name)
        kind = generic.concrete_type(tasks, vf.TasksetConfig) or vf.TasksetConfig
        self._taskset = tasks(kind.model_validate({**dict(settings.get("taskset", {})), "id": name}))

    def prepare(self) -> None:
        import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]
        from verifiers.v1.utils import generic, loaders  # pyright: ignore[reportMissingImports]

        sys.modules[LOOP] = importlib.import_module("posttrain.episodes.adapters.verifiers_loop")
        own = dict(self._settings)
        trains = own.pop("trains", None)
        self._env_class = loaders.environment_class(self._name, own.get("id", ""))
        kind = generic.concrete_type(self._env_class, vf.EnvConfig, origin=vf.Env) or vf.EnvConfig
        seats = [seat for seat, field in kind.model_fields.items() if isinstance(field.default, vf.AgentConfig)]
        self._seat = _seat(seats, trains, own)
        for seat in seats:
            own[seat] = _seated({**_declared(kind, seat), **dict(own.get(seat, {}))})
        own["taskset"] = {**dict(own.get("taskset", {})), "id": self._name}
        self._config = kind.model_validate(own)

    def rows(self) -> Iterator[dict[str, Any]]:
        for task in self._taskset:
            data = task.data.model_dump(mode="json", exclude_none=True)
            prompt = data.get("prompt") or data.get("description") or data.get("name") or "Begin."
            system = [{"role": "system", "content": data["system_prompt"]}] if data.get("system_prompt") else []
            asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            answer = {"answer": data["answer"]} if "answer" in data else {}
            yield {"prompt": [*system, *asked] if system else prompt, **answer, "environment": {"data": data}}

    async def play(self, row: Mapping[str, Any], url: str) -> Worth:
        from verifiers.v1.clients import EvalClientConfig, ModelContext  # pyright: ignore[reportMissingImports]

        kind = self._taskset.task_type()
        data = kind.data_type().model_validate(row["environment"]["data"])
        task = kind(data, self._taskset.config.task)
        model = ModelContext(model="policy", client=EvalClientConfig(base_url=url, api_key_var=KEY))
        env = self._env_class(self._config)
        async with env.serving():
            episode = await env.run_episode(task, model)
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if not episode.ok:
            raise RuntimeError("the environment failed: " + "; ".join(f"{e.type}: {e.message}" for e in errors[-2:]))
        traces = [trace for trace in episode.traces if len(episode.traces) == 1 or trace.agent.name == self._seat]
        scored = {name: reward.score for name, reward in traces[-1].rewards.items() if reward is not None}
        return Worth(float(sum(trace.reward for trace in traces)), {**scored, **traces[-1].metrics})


def _declared(kind: Any, seat: str) -> dict[str, Any]:
    """Return the settings that the environment's author has made for a seat."""
    return kind.model_fields[seat].default.model_dump(exclude_unset=True)


def _seated(seat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a seat. Its chat runs in this process unless it asks for another harness."""
    harness = dict(seat.get("harness") or {"id": "null"})
    if harness["id"] != "null":
        return dict(seat)
    return {**seat, "harness": {**harness, "id": LOOP}, "runtime": {"type": "subprocess"}}


def _seat(seats: list[str], trains: str | None, settings: Mapping[str, Any]) -> str:
    """Return the policy's seat. ConfigError if it is not clear, or if another seat has no model."""
    if trains is not None and trains not in seats:
        raise ConfigError(given=f"environment.settings.trains = {trains}", allowed=", ".join(seats))
    chosen = trains or seats[0]
    for seat in seats:
        if seat != chosen and "client" not in dict(settings.get(seat, {})):
            raise ConfigError(
                given=f"the environment has the seats {', '.join(seats)}; {chosen} is trained, but {seat} has no model",
                allowed="one trained seat, and a model for each of the others",
                fix=f"Set environment.settings.{seat} = {{model: ..., client: {{base_url: ...}}}}, or name the trained "
                "seat in environment.settings.trains.",
            )
    return chosen
