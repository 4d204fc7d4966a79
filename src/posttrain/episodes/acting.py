"""The environment and the tools of a run. They are found and tried before a model is loaded, then given to samplers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from posttrain.data.prompts import Renderer
from posttrain.episodes.adapters import find_environment
from posttrain.episodes.agents.setup import AgentSetup
from posttrain.episodes.agents.turns import AgentScene
from posttrain.episodes.bridge import Bridge
from posttrain.episodes.calls import proven, template_of
from posttrain.episodes.episodes import Episodes
from posttrain.episodes.scene import Limits, Scene
from posttrain.episodes.sessions import Sessions, Setup
from posttrain.episodes.tools import find_tool, require_tools_in_prompt
from posttrain.errors import ConfigError
from posttrain.rewards.load import resolve

if TYPE_CHECKING:
    from posttrain.config import AgentConfig, EnvironmentConfig, SamplingConfig
    from posttrain.engines.row_stream import HasRows


class Asked(Protocol):
    """The object that holds the settings, for example the config of a run."""

    @property
    def environment(self) -> EnvironmentConfig: ...
    @property
    def agent(self) -> AgentConfig: ...
    @property
    def tools(self) -> Sequence[str]: ...
    @property
    def sampling(self) -> SamplingConfig: ...


@dataclass(frozen=True, kw_only=True)
class Acting:
    """The environment, tools or agent of a run. `around` turns a sampler into one with several turns a completion."""

    sessions: Sessions
    limits: Limits
    history: Literal["auto", "split", "keep"] = "auto"
    """What to do if the chat template rewrites history."""

    @staticmethod
    def of(asked: Asked, resources: ExitStack) -> Acting | None:
        """Start the environment, the tools or the agent; return None if there are none. ConfigError says what is wrong
        with them; closing `resources` ends their processes."""
        sampling, has_agent = asked.sampling, asked.agent.is_given
        if asked.environment.function is None and not asked.tools and not has_agent:
            return None
        settings = asked.agent if has_agent else asked.environment
        sessions = Sessions(_agent(asked.agent, sampling) if has_agent else _environment(asked))
        resources.callback(sessions.close)
        sessions.start()
        limits = Limits(
            max_turns=sampling.max_turns, max_length=sampling.max_trajectory_length, attempts=settings.attempts
        )
        return Acting(sessions=sessions, limits=limits, history=settings.history)

    def apart(self, resources: ExitStack) -> Acting:
        """Return a copy with its own processes, so that another thread can use it at the same time."""
        sessions = Sessions(self.sessions.setup)
        resources.callback(sessions.close)
        sessions.start()
        return replace(self, sessions=sessions)

    @property
    def schemas(self) -> list[Mapping[str, Any]]:
        """The schemas of the tools, as a chat template writes them."""
        return list(self.sessions.schemas)

    def around(self, sampler: HasRows, renderer: Renderer, eos_ids: Collection[int]) -> Episodes:
        """Return a sampler of completions with several turns. ConfigError if the chat template does not allow them."""
        return Episodes(sampler=sampler, scene=self.scene(renderer, eos_ids, sampler.context_length))

    def scene(self, renderer: Renderer, eos_ids: Collection[int], context_length: int | None) -> Scene:
        """Return the parts that the trajectories share; `context_length` is the maximum context in tokens. ConfigError
        if the chat template does not allow several turns."""
        if not renderer.chat:
            raise ConfigError(
                given="an environment, tools or an agent, but the prompts are plain text, without turns",
                allowed="data.chat = auto or true, and a chat template",
                fix="Give model.chat_template the path of a Jinja file, and leave data.chat out.",
            )
        if self.sessions.setup.agent is not None:
            agent = (self.sessions, self.limits, self.history, context_length)
            return AgentScene.proven(renderer, eos_ids, *agent)
        roles = [*(["user"] if self.sessions.speaks else []), *(["tool"] if self.schemas else [])]
        bridge = Bridge.of(renderer, eos_ids, tools=self.schemas, roles=roles, history=self.history)
        calls = proven(template_of(renderer), bridge) if self.schemas else None
        if calls is not None:
            require_tools_in_prompt(renderer, self.schemas)
        return Scene(
            bridge=bridge,
            sessions=self.sessions,
            limits=self.limits,
            calls=calls,
            context_length=context_length,
        )


def _environment(asked: Asked) -> Setup:
    settings = asked.environment
    form, target = ("", None) if settings.function is None else find_environment(settings.function)
    return Setup(
        environment=target,
        form=form,
        settings=settings.settings,
        tools=[find_tool(tool) for tool in asked.tools],
        most_characters=settings.max_result_length,
        timeout=settings.timeout,
    )


def _agent(settings: AgentConfig, sampling: SamplingConfig) -> Setup:
    agent = AgentSetup(
        function=None if settings.function is None else resolve(settings.function),
        command=settings.command,
        settings=settings.settings,
        host=settings.host,
        sampling={name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k", "min_p", "stop")},
        ignores=settings.sampling == "ignore",
    )
    return Setup(agent=agent, timeout=settings.timeout)
