"""Environments of verifiers 0.1.12 to 0.3: `load_environment`, MultiTurnEnv, ToolEnv and their subclasses."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping
from typing import Any

from posttrain.episodes.adapters.played import KEY, Worth

_MODULE = "verifiers.types"
"""A module that only these versions have."""


def find(name: str, settings: Mapping[str, Any]) -> Classic | None:
    """Return the environment; None if verifiers is newer or the package has no `load_environment`."""
    module = name.rpartition("/")[2].partition("@")[0].replace("-", "_")
    if importlib.util.find_spec(_MODULE) is None or importlib.util.find_spec(module) is None:
        return None
    package = importlib.import_module(module)
    if not callable(getattr(package, "load_environment", None)):
        return None
    return Classic(package.load_environment(**settings))


class Classic:
    """An environment of the class `vf.Environment`. Implements `Played`."""

    def __init__(self, environment: Any) -> None:
        self._own = environment

    def rows(self) -> Iterator[dict[str, Any]]:
        for row in self._own.get_dataset():
            yield {name: value for name, value in row.items() if value is not None}

    def prepare(self) -> None:
        """Do nothing: `load_environment` already got all settings."""

    async def play(self, row: Mapping[str, Any], url: str) -> Worth:
        types: Any = importlib.import_module(_MODULE)
        asked = {"example_id": 0, **row}
        if isinstance(asked.get("info"), Mapping):
            asked["info"] = json.dumps(asked["info"])  # as datasets store it: parsed again for each episode
        if isinstance(asked["prompt"], str):
            asked["prompt"] = [{"role": "user", "content": asked["prompt"]}]
        client = types.ClientConfig(
            client_type="openai_chat_completions", api_base_url=url, api_key_var=KEY, max_retries=0
        )
        found = await self._own.run_rollout(asked, client, "policy", {})
        if found.get("error") is not None:
            raise RuntimeError(f"the environment failed: {found['error']}")
        return Worth(float(found["reward"]), dict(found.get("metrics") or {}))
