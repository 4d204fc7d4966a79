"""The engines of a run in processes of their own: how they are started, get weights, and prove that they have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from os import close
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn

from posttrain.control_groups import cores
from posttrain.controller.messages import Lead, Limits
from posttrain.engines.delivery import DeliveryProof, tolerance_for
from posttrain.engines.port import EnginePort, WeightsLoaded
from posttrain.engines.process import EngineProcess, EngineSetup
from posttrain.engines.published import Published, new_files
from posttrain.engines.sampler import Answers, Digest, Sampler
from posttrain.engines.weights import merged_tensors, named_tensors
from posttrain.errors import GuardStop, PosttrainError
from posttrain.experience.answers import EngineAnswers
from posttrain.experience.asynchronous import AsynchronousFeed
from posttrain.experience.driver import Driver
from posttrain.experience.group import Group, scores_of
from posttrain.experience.pace import Pace
from posttrain.experience.schedule import Schedule
from posttrain.experience.selection import DynamicSampling, informative
from posttrain.models.policy import Forward
from posttrain.placement import placement_for
from posttrain.rewards.scores import enforce_limit
from posttrain.train.publish import TrainerScores
from posttrain.types import Max, Metrics, Min, Prompt

if TYPE_CHECKING:
    from posttrain.algorithms import Algorithm
    from posttrain.config import RunConfig
    from posttrain.engines.vllm.port import ServerSetup
    from posttrain.engines.vllm.sleeping import SharedDevice
    from posttrain.models.load import LoadedModel
    from posttrain.rewards import RewardSet
    from posttrain.store.run_store import RunStore

PROBE_PROMPTS = 4
"""Prompts on which each delivery of weights is proved."""
START_DEADLINE = 300.0
"""Seconds in which an engine has to load the model: imports alone take many on a busy machine."""
STARTS = 5
"""Deadlines of a token that loading the model may take, where that is more."""


@dataclass
class Deliveries:
    """Hands weights to engines through memory that both see, and looks at what they say of them."""

    model: nn.Module
    proof: DeliveryProof
    scores: TrainerScores
    files: Sequence[int] = field(default_factory=new_files)
    numbers: dict[int, int] = field(default_factory=dict)
    """Which publication a version is."""
    give_room: Callable[[], None] = lambda: None
    """Gives memory that the trainer has no use for back to its device, before engines wake there."""

    def __post_init__(self) -> None:
        self.driver: Driver | None = None
        self._published: Published | None = None
        self._expected: dict[int, tuple[dict[str, Digest], list[list[float]]]] = {}
        self._worst = 0.0
        self._last: int | None = None
        """The last version of the run, if it was made and not published yet."""

    def __call__(self, version: int) -> Metrics:
        """Publish the weights of `version`; see `Publisher`. The first publication waits for an engine to be there.

        Engines load when they can, so `publish/probe_max_difference` is the largest since the publication before.
        """
        assert self.driver is not None, "a driver is made for these deliveries"
        if self._published is None:
            self.give_room()
            self.driver.launch()
            ready = self.driver.wait_for_engine()
            self._published = Published(self.files, ready.tensors, write=True)
            self._merged = ready.merged
            return self._publish(version)
        self.driver.trained(version)
        if version >= self.driver.limits.last_version:
            self._last = version
            return {}
        return self._publish(version) if self.driver.may_publish(version) else {}

    def newest(self) -> None:
        """Publish what was not yet: the weights that the run begins with, or those that it has trained last. Nobody
        samples with these for training, so that they wait until they are evaluated and the run is on file."""
        assert self.driver is not None, "a driver is made for these deliveries"
        if self._published is None:
            self(0)
        elif self._last is not None and self.driver.may_publish(self._last):
            self._publish(self._last)
        self._last = None

    def _publish(self, version: int) -> Metrics:
        assert self.driver is not None
        assert self._published is not None
        number = 1 + max(self.numbers.values(), default=-1)
        named = merged_tensors if self._merged else named_tensors
        digests = self._published.write(number, named(self.model))
        trained = self._score(version)
        self.numbers[version] = number
        self._expected[version] = digests, trained
        for old in sorted(self.numbers)[:-3]:
            del self.numbers[old], self._expected[old]
        self.give_room()
        self.driver.published(version)
        worst, self._worst = self._worst, 0.0
        return {"publish/tensors_compared": Min(float(len(digests))), "publish/probe_max_difference": Max(worst)}

    def prove(self, loaded: WeightsLoaded) -> str:
        """What is wrong with what an engine has loaded; empty if it decodes with the weights that were trained."""
        if loaded.version not in self._expected:
            return f"it says that it loaded version {loaded.version}, which is not published"
        digests, trained = self._expected[loaded.version]
        if more := sorted(loaded.digests.keys() - digests.keys()):
            return f"it decodes with {more[0]}, which is not among what is trained ({len(more)} tensors)"
        wrong = [name for name, one in digests.items() if loaded.digests.get(name) != one]
        if wrong:
            return f"{wrong[0]} and {len(wrong) - 1} other tensors are not those of version {loaded.version}"
        try:
            self._worst = max(self._worst, self.proof.compare(trained, loaded.probe, loaded.version))
        except PosttrainError as error:
            return error.given
        return ""

    @torch.no_grad()
    def _score(self, version: int) -> list[list[float]]:
        trained = self.scores(self.proof.prompt_ids, self.proof.completion_ids, temperature=self.proof.temperature)
        self.proof.compare(trained, trained, version)  # raises for numbers that are not finite
        return trained

    def close(self) -> None:
        for file in self.files:
            with suppress(OSError):
                close(file)


@dataclass(kw_only=True)
class Fleet:
    """Makes the feed of a run whose engines are processes, and what publishes to them."""

    config: RunConfig
    loaded: LoadedModel
    forward: Forward
    store: RunStore
    resources: ExitStack
    say: Callable[[str], None]
    start: ClassVar[Callable[..., EnginePort]] = EngineProcess
    """Starts an engine: from its name, set-up, files of the weights, numbers of the publications, proof, and log."""

    @staticmethod
    def of(
        config: RunConfig,
        loaded: LoadedModel,
        forward: Forward,
        store: RunStore,
        resources: ExitStack,
        say: Callable[[str], None],
    ) -> Fleet | None:
        """None where the trainer's process samples."""
        if not config.rollout.num_engines:
            return None
        store.timeline.open(store.folder)
        return Fleet(config=config, loaded=loaded, forward=forward, store=store, resources=resources, say=say)

    @property
    def deliveries(self) -> Deliveries:
        """What publishes to the engines, once the feed is made."""
        return self._deliveries

    def answers(self, local: Sampler) -> Answers:
        """What answers evaluations: engines, once the feed is made. Where they do not get every version, the trainer's
        process: what is measured are the present weights."""
        if self.config.train.publish_every > 1:
            return local
        return EngineAnswers(local, lambda: self._driver, lambda: self.deliveries.newest())

    def feed(self, algorithm: Algorithm, prompts: Sequence[Prompt], rewards: RewardSet | None) -> AsynchronousFeed:
        """Engines start at once, and load the model while the rest of the run is set up; one that shares the trainer's
        GPU starts with the first publication."""
        config, rollout, greedy = self.config, self.config.rollout, "greedy_reward" in algorithm.needs
        proof = DeliveryProof.from_prompts(
            [prompt.ids for prompt in prompts[:PROBE_PROMPTS]],
            tolerance=config.guards.publish_tolerance or tolerance_for(self.loaded.compute_dtype),
            temperature=self.forward.temperature,
        )
        scores = TrainerScores(self.forward.under(self.loaded.model), self.loaded.pad_id)
        self._device = shared_device(config, self.loaded)
        give_room = torch.cuda.empty_cache if self._device and self.loaded.device.type == "cuda" else lambda: None
        self._deliveries = deliveries = Deliveries(self.loaded.model, proof, scores, give_room=give_room)
        self.resources.callback(deliveries.close)
        driver = Driver(
            limits=limits_of(config, greedy=greedy, in_turns=self._device is not None),
            engines=self._starts(deliveries),
            schedule=Schedule(config.seed, prompts, config.train.prompts_per_step),
            max_new_tokens=config.sampling.max_completion_length,
            rewards=rewards,
            trains=has_signal if "signal" in algorithm.needs else every_group,
            no_signal=partial(no_signal, config, len(prompts)),
            prove=deliveries.prove,
            deadline=rollout.deadline,
            start_deadline=max(START_DEADLINE, STARTS * rollout.deadline),
            say=self.say,
            timeline=self.store.timeline,
            greedy=greedy,
        )
        self._driver = deliveries.driver = driver
        if config.train.run_ahead == "auto":
            driver.pace = Pace(config.train.max_staleness, self._lead)
        self.resources.callback(driver.close)
        self.resources.callback(torch.set_num_threads, torch.get_num_threads())  # what runs next has all of them again
        torch.set_num_threads(threads_of(config)[0])
        driver.start()
        if self._device is None:  # else the trainer tries how much memory it needs first, and publishes then
            driver.launch()
        return AsynchronousFeed(
            config,
            prompts,
            driver,
            pad_id=self.loaded.pad_id,
            weights=[one.weight for one in rewards.components] if rewards and algorithm.learns_from_rewards else None,
            publish=deliveries,
            say=self.say,
            replaces="signal" in algorithm.needs,
        )

    def _lead(self, lead: Lead, why: str) -> None:
        self.say(why)
        self._driver.post(lead)

    def _starts(self, deliveries: Deliveries) -> dict[str, Callable[[], EnginePort]]:
        """How each engine is started, at first and again. What it is told is made once, while nobody trains."""
        names = engine_names(self.config.rollout.num_engines)
        if self.config.rollout.engine == "vllm":
            setups = {name: cache(partial(self._server_setup, place)) for place, name in enumerate(names)}
            for setup in (
                () if self._device else setups.values()
            ):  # how much of a shared GPU is free shows when it starts
                setup()
            return {name: partial(self._server, name, deliveries, setup) for name, setup in setups.items()}
        return {name: partial(self._started, name, deliveries, type(self).start, self._setup()) for name in names}

    def _started(
        self, name: str, deliveries: Deliveries, start: Callable[..., EnginePort], setup: EngineSetup | ServerSetup
    ) -> EnginePort:
        log = self.store.folder / "engines" / f"{name.replace(' ', '-')}.log"
        return start(name, setup, deliveries.files, deliveries.numbers, deliveries.proof, log)

    def _server(self, name: str, deliveries: Deliveries, given: Callable[[], ServerSetup]) -> EnginePort:
        """A vLLM server. One that was there before may come back, and is waited for longer."""
        from posttrain.engines.vllm.port import VllmEngine  # with httpx, which only servers need

        setup = given()
        if self._driver.ready is not None:
            setup = replace(setup, patience=START_DEADLINE)
        return self._started(name, deliveries, VllmEngine, setup)

    def _server_setup(self, place: int) -> ServerSetup:
        from posttrain.engines.vllm.served import server_setup

        threads = threads_of(self.config)[1]
        return server_setup(self.config, self.loaded, self.store.folder, place, threads=threads, device=self._device)

    def _setup(self) -> EngineSetup:
        config = self.config
        return EngineSetup(
            model=config.model.model_dump(mode="json"),
            lora=None if config.lora is None else config.lora.model_dump(mode="json"),
            sampling=config.sampling.model_dump(mode="json"),
            seed=config.seed,
            compute=self.loaded.compute.to_json(),
            keep_cache=config.rollout.keep_cache,
            threads=threads_of(config)[1],
        )


def engine_names(count: int) -> list[str]:
    """
    >>> engine_names(2)
    ['engine 0', 'engine 1']
    """
    return [f"engine {number}" for number in range(count)]


def shared_device(config: RunConfig, loaded: LoadedModel) -> SharedDevice | None:
    """The trainer's GPU, where a vLLM server shares it; None on a CPU, where memory need not be given back.

    Raises ConfigError where there are too few GPUs for the servers."""
    if config.rollout.engine != "vllm" or loaded.device.type != "cuda":
        return None
    if placement_for(config, torch.cuda.device_count()) == "beside":
        return None
    from posttrain.engines.vllm.sleeping import SharedDevice  # with httpx, which only servers need

    name = str(torch.cuda.get_device_properties(loaded.device).uuid)
    return SharedDevice(name, lambda: torch.cuda.mem_get_info(loaded.device)[0])


def limits_of(config: RunConfig, *, greedy: bool = False, in_turns: bool = False) -> Limits:
    """`greedy`: a group has one row more. `in_turns`: engines share the trainer's GPU."""
    train = config.train
    return Limits(
        prompts_per_step=train.prompts_per_step,
        group_size=config.sampling.group_size + greedy,
        last_version=train.steps,
        run_ahead=train.lead,
        max_staleness=train.max_staleness,
        publish_every=train.publish_every,
        in_turns=in_turns,
        max_voided=train.max_sampling_rounds * train.prompts_per_step,
    )


def threads_of(config: RunConfig) -> tuple[int, int]:
    """Threads of the trainer, and of each engine. Side by side they share the cores; in turns each has all."""
    available, engines = cores(), config.rollout.num_engines
    if config.train.lead == 0:
        return torch.get_num_threads(), max(1, available // engines)
    each = max(1, available // 2 // engines)
    return max(1, available - each * engines), each


def every_group(group: Group) -> bool:
    return True


def has_signal(group: Group) -> bool:
    """Rewards that differ: else the group moves no weight."""
    return bool(informative([group]))


def no_signal(config: RunConfig, num_prompts: int, groups: Sequence[Group]) -> GuardStop:
    """Why so few groups had a signal: rewards that failed, or rewards that are all alike."""
    try:
        if (scores := scores_of(groups)) is not None:
            enforce_limit(scores, config.guards.max_unscored)
    except GuardStop as unscored:
        return unscored
    return DynamicSampling(config, num_prompts).no_signal(groups, 0)
