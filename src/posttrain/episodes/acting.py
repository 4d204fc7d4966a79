"""The environment and the tools of a run: found and tried before any model is loaded, and then given to samplers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from posttrain.data.prompts import Renderer
from posttrain.engines.local import LocalSampler
from posttrain.episodes.adapters import find_environment
from posttrain.episodes.bridge import Bridge
from posttrain.episodes.calls import proven
from posttrain.episodes.episodes import Episodes, Limits
from posttrain.episodes.sessions import Sessions, Setup
from posttrain.episodes.tools import find_tool
from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from posttrain.config import EnvironmentConfig, SamplingConfig
    from posttrain.engines.sampler import Sampler


class Asked(Protocol):
    """Where the settings stand: the config of a run, for example."""

    @property
    def environment(self) -> EnvironmentConfig: ...
    @property
    def tools(self) -> Sequence[str]: ...
    @property
    def sampling(self) -> SamplingConfig: ...


@dataclass(frozen=True, kw_only=True)
class Acting:
    """Implements nothing by itself: `around` makes of a sampler one whose completions may have several turns."""

    settings: EnvironmentConfig
    sessions: Sessions
    limits: Limits

    @staticmethod
    def of(asked: Asked, resources: ExitStack) -> Acting | None:
        """None without an environment and without tools. ConfigError says what is wrong with them; `resources` ends
        their processes."""
        settings, sampling = asked.environment, asked.sampling
        if settings.function is None and not asked.tools:
            return None
        form, target = ("", None) if settings.function is None else find_environment(settings.function)
        sessions = Sessions(
            Setup(
                environment=target,
                form=form,
                settings=settings.settings,
                tools=[find_tool(tool) for tool in asked.tools],
                most_characters=settings.max_result_length,
                timeout=settings.timeout,
            )
        )
        resources.callback(sessions.close)
        sessions.start()
        limits = Limits(
            max_turns=sampling.max_turns, max_length=sampling.max_trajectory_length, attempts=settings.attempts
        )
        return Acting(settings=settings, sessions=sessions, limits=limits)

    @property
    def schemas(self) -> list[Mapping[str, Any]]:
        """Of the tools, as a chat template writes them."""
        return list(self.sessions.schemas)

    def around(self, sampler: Sampler, renderer: Renderer, eos_ids: Collection[int]) -> Episodes:
        """Completions of several turns from this sampler. ConfigError where the chat template does not allow them."""
        if not renderer.chat:
            raise ConfigError(
                given="an environment or tools, but the prompts are plain text, without turns",
                allowed="data.chat = auto or true, and a chat template",
                fix="Give model.chat_template the path of a Jinja file, and leave data.chat out.",
            )
        roles = [*(["user"] if self.sessions.speaks else []), *(["tool"] if self.schemas else [])]
        bridge = Bridge.of(renderer, eos_ids, tools=self.schemas, roles=roles, history=self.settings.history)
        calls = proven(template_of(renderer), bridge) if self.schemas else None
        if calls is not None:
            self._require_tools_in_prompt(renderer)
        assert isinstance(sampler, LocalSampler), "the rules of the config: turns are sampled in this process"
        return Episodes(sampler=sampler, bridge=bridge, sessions=self.sessions, limits=self.limits, calls=calls)

    def _require_tools_in_prompt(self, renderer: Renderer) -> None:
        """A template that leaves the tools out would ask for calls of what the model was never told of."""
        asked = renderer.render([{"role": "user", "content": "?"}], add_generation_prompt=True, tools=self.schemas)
        left_out = [one["function"]["name"] for one in self.schemas if one["function"]["name"] not in asked]
        if left_out:
            raise ConfigError(
                given=f"the chat template leaves the tool {left_out[0]} out of the prompt: the model would not know it",
                allowed="a chat template that writes tools",
                fix="Name the template of a model that calls tools in model.chat_template.",
            )


def template_of(renderer: Renderer) -> str:
    """The text of the chat template; of several that of all."""
    template = renderer.tokenizer.chat_template
    return template if isinstance(template, str) else "\n".join(map(str, (template or {}).values()))
