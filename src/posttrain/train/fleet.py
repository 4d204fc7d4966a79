"""The engines of a run that have their own processes, and the parts of a run that use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch

from posttrain.control_groups import cores
from posttrain.controller.messages import Lead, Limits
from posttrain.data.strata import strata_of
from posttrain.engines.delivery import DeliveryProof, tolerance_for
from posttrain.engines.port import EnginePort, Token
from posttrain.engines.process import EngineProcess, EngineSetup, StartEngine, published_engine
from posttrain.engines.sampler import Answers, Judging, Sampler
from posttrain.errors import GuardStop
from posttrain.experience.answers import EngineAnswers, EngineJudge
from posttrain.experience.asynchronous import AsynchronousFeed
from posttrain.experience.deliveries import PROBE_PROMPTS, Deliveries, TrainerScores
from posttrain.experience.driver import Driver
from posttrain.experience.group import Group, scores_of
from posttrain.experience.pace import Pace
from posttrain.experience.schedule import Schedule
from posttrain.experience.selection import DynamicSampling, informative
from posttrain.experience.servers import Servers, engine_starts, room_for_judges, start_deadline
from posttrain.experience.trajectories import Trajectories
from posttrain.models.policy import Forward
from posttrain.placement import placement_for
from posttrain.rewards.scores import enforce_limit
from posttrain.train.hosts import Hosts
from posttrain.types import Prompt
from posttrain.watch.bisection import Answered

if TYPE_CHECKING:
    from posttrain.algorithms import Algorithm
    from posttrain.config import RunConfig
    from posttrain.engines.vllm.sleeping import SharedDevice
    from posttrain.episodes.scene import Scene
    from posttrain.models.load import LoadedModel
    from posttrain.rewards import RewardSet
    from posttrain.store.run_store import RunStore


@dataclass(kw_only=True)
class Fleet:
    """Builds the feed of a run whose engines are processes, and the part that publishes weights to them."""

    config: RunConfig
    loaded: LoadedModel
    forward: Forward
    store: RunStore
    resources: ExitStack
    say: Callable[[str], None]
    to_come: Callable[[], int]
    """Bytes that the trainer's optimizer has yet to allocate, and will keep."""
    hosts: Hosts | None = None
    """The machines that hold the engines; None for this machine."""
    start: ClassVar[StartEngine] = EngineProcess
    """Starts an engine of `rollout.engine: local`."""

    @staticmethod
    def of(
        config: RunConfig,
        loaded: LoadedModel,
        forward: Forward,
        store: RunStore,
        resources: ExitStack,
        *,
        say: Callable[[str], None],
        to_come: Callable[[], int],
        hosts: Hosts | None = None,
    ) -> Fleet | None:
        """The fleet of a run; None if the trainer's process samples."""
        if not config.rollout.num_engines:
            return None
        store.timeline.open(store.folder)
        return Fleet(
            config=config,
            loaded=loaded,
            forward=forward,
            store=store,
            resources=resources,
            say=say,
            to_come=to_come,
            hosts=hosts,
        )

    @property
    def deliveries(self) -> Deliveries:
        """The part that publishes weights to the engines. It exists once the feed is made."""
        return self._deliveries

    @property
    def window(self) -> int | None:
        """The context length of an engine, in tokens; None without a limit."""
        return (
            longest_row(self.config, self.loaded)
            if self.config.rollout.engine == "vllm"
            else self.loaded.context_length
        )

    def answers(self, local: Sampler) -> Answers:
        """The sampler for evaluations: the engines, once the feed is made. If they do not get every version, it is the
        trainer's process, because an evaluation measures the present weights."""
        if self.config.train.publish_every > 1:
            return local
        return EngineAnswers(local, lambda: self._driver, lambda: self.deliveries.newest(), turns=self.config.has_turns)

    def judging(self, local: Sampler, *, scores: bool) -> Judging:
        """The sampler for judges that use the policy's weights: the vLLM servers if they get every version.

        `scores`: the judges score groups for training, which were drawn with the weights that engines hold now.
        Otherwise the newest weights are published first."""
        if self.config.rollout.engine != "vllm" or self.config.train.publish_every > 1:
            return local
        ready = (lambda: self._driver.wait_for_weights()) if scores else (lambda: self.deliveries.newest())
        return EngineJudge(local.tokenizer, longest_row(self.config, self.loaded), lambda: self._driver, ready)

    def feed(
        self, algorithm: Algorithm, prompts: Sequence[Prompt], rewards: RewardSet | None, scene: Scene | None = None
    ) -> AsynchronousFeed:
        """Build the feed and start the engines. They load the model while the rest of the run is set up.

        An engine that shares the trainer's GPU starts with the first publication. `scene` is for completions with
        several turns."""
        config, rollout, greedy = self.config, self.config.rollout, "greedy_reward" in algorithm.needs
        strata = strata_of(prompts, config.data.stratify)
        proof = DeliveryProof.from_prompts(
            [prompt.ids for prompt in prompts[:PROBE_PROMPTS]],
            tolerance=config.guards.publish_tolerance or tolerance_for(self.loaded.compute_dtype),
            temperature=self.forward.temperature,
        )
        scores = TrainerScores(self.forward.under(self.loaded.model), self.loaded.pad_id)
        self._device = shared_device(config, self.loaded, self.to_come)
        give_room = torch.cuda.empty_cache if self._device else lambda: None  # nothing to free without a GPU
        elsewhere = {} if self.hosts is None else {"files": (), "place": self.hosts.publications}
        deliveries = Deliveries(self.loaded.model, proof, scores, give_room=give_room, **elsewhere)
        self._deliveries = deliveries
        self.resources.callback(deliveries.close)
        driver = Driver(
            limits=limits_of(config, greedy=greedy, in_turns=self._device is not None),
            engines=self._starts(deliveries),
            schedule=Schedule(config.seed, prompts, config.train.prompts_per_step, strata),
            max_new_tokens=config.sampling.max_completion_length,
            rewards=rewards,
            trains=has_signal if "signal" in algorithm.needs else every_group,
            no_signal=partial(no_signal, config, len(prompts)),
            prove=deliveries.prove,
            deadline=rollout.deadline,
            start_deadline=start_deadline(rollout),
            say=self.say,
            timeline=self.store.timeline,
            greedy=greedy,
            trajectories=Trajectories.of(scene, config.sampling, rollout.num_engines),
        )
        self._driver = deliveries.driver = driver
        if config.train.run_ahead == "auto":
            driver.pace = Pace(config.train.max_staleness, self._lead)
        self.resources.callback(driver.close)
        self.resources.callback(torch.set_num_threads, torch.get_num_threads())  # the next run gets all threads back
        torch.set_num_threads(threads_of(config)[0])
        driver.start()
        if self._device is None:  # on a shared GPU the trainer first measures its memory need, then publishes
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
            context_length=self.loaded.context_length,
        )

    def examine(self, tokens: Sequence[Token]) -> list[Answered]:
        """The engines' log-probabilities for these tokens, and what is wrong with the weights that they hold."""
        return [
            Answered(
                engine=name,
                wrong_weights=self.deliveries.wrong_weights(one.version, one.digests),
                fresh=one.fresh,
                cached=one.cached,
            )
            for name, one in self._driver.examine(tokens).items()
        ]

    def _lead(self, lead: Lead, why: str) -> None:
        self.say(why)
        self._driver.post(lead)

    def _starts(self, deliveries: Deliveries) -> dict[str, Callable[[], EnginePort]]:
        """A function per engine that starts it or restarts it. The setup is made once, before training begins."""
        config, folder, threads = self.config, self.store.folder, threads_of(self.config)[1]
        if config.rollout.engine == "vllm":
            longest = longest_row(config, self.loaded)
            servers = Servers(
                config.rollout,
                config.sampling,
                self.loaded,
                folder,
                longest=longest,
                threads=threads,
                device=self._device,
            )
            return servers.starts(deliveries)
        kind = config.rollout.engine
        start = type(self).start if kind == "local" else published_engine(kind)
        if self.hosts is not None and kind == "local":
            start = partial(EngineProcess, start=self.hosts.start_engine)
        return engine_starts(start, config.rollout, self._setup(), deliveries, folder)

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


def longest_row(config: RunConfig, loaded: LoadedModel) -> int:
    """Length in tokens of the longest row that an engine may have to decode, prompt included.

    With several turns and no max_trajectory_length it is the model's context length."""
    sampling = config.sampling
    lengths = [sampling.max_completion_length, config.evaluation.max_completion_length or 0]
    if config.has_turns:
        lengths.append(sampling.max_trajectory_length or loaded.context_length or config.most_drawn[0])
    longest = max(lengths) + (config.data.max_prompt_length or loaded.context_length or 0)
    longest = min(longest, loaded.context_length or longest)
    judges = [entry.judge for entry in (*config.rewards, *config.check) if entry.judge is not None]
    return room_for_judges(longest, judges, loaded)


def shared_device(config: RunConfig, loaded: LoadedModel, to_come: Callable[[], int]) -> SharedDevice | None:
    """The trainer's GPU if a vLLM server shares it; None on a CPU, where no memory has to be given back.

    Raises ConfigError if there are too few GPUs for the servers."""
    if config.rollout.engine != "vllm" or loaded.device.type != "cuda":
        return None
    if placement_for(config, torch.cuda.device_count()) == "beside":
        return None
    from posttrain.engines.vllm.sleeping import SharedDevice  # imports httpx, which only servers need

    name = str(torch.cuda.get_device_properties(loaded.device).uuid)
    return SharedDevice(name, lambda: torch.cuda.mem_get_info(loaded.device)[0], to_come)


def limits_of(config: RunConfig, *, greedy: bool = False, in_turns: bool = False) -> Limits:
    """The controller's limits. `greedy`: a group has one more row. `in_turns`: engines share the trainer's GPU."""
    train = config.train
    return Limits(
        prompts_per_step=train.prompts_per_step,
        group_size=config.sampling.group_size + greedy,
        last_version=train.steps,
        run_ahead=train.lead,
        max_staleness=train.max_staleness,
        publish_every=train.publish_every,
        in_turns=in_turns,
        turns=config.has_turns,
        max_voided=train.max_sampling_rounds * train.prompts_per_step,
    )


def threads_of(config: RunConfig) -> tuple[int, int]:
    """Number of threads of the trainer, and of each engine.

    If they work at the same time, they share the cores. If they take turns, each uses all cores. Engines on a cluster
    have cores of their own."""
    if config.cluster is not None:
        return torch.get_num_threads(), config.cluster.engine_cpus
    available, engines = cores(), config.rollout.num_engines
    if config.train.lead == 0:
        return torch.get_num_threads(), max(1, available // engines)
    each = max(1, available // 2 // engines)
    return max(1, available - each * engines), each


def every_group(group: Group) -> bool:
    return True


def has_signal(group: Group) -> bool:
    """Do the rewards of the group differ? If not, the group moves no weight."""
    return bool(informative([group]))


def no_signal(config: RunConfig, num_prompts: int, groups: Sequence[Group]) -> GuardStop:
    """The error for too few groups with a signal: either rewards failed, or all rewards were equal."""
    try:
        if (scores := scores_of(groups)) is not None:
            enforce_limit(scores, config.guards.max_unscored)
    except GuardStop as unscored:
        return unscored
    return DynamicSampling(config, num_prompts).no_signal(groups, 0)
