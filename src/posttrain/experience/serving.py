"""A model that is not being trained, served by engines in other processes, for evaluation of saved weights or chat.

This is the driver of a run without a step to feed. It starts the servers, gives them the weights once, accepts no token
before the weights are proven, and moves lost rows to other servers.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from posttrain.control_groups import cores
from posttrain.controller.messages import Limits
from posttrain.engines.delivery import DeliveryProof, tolerance_for
from posttrain.engines.port import EnginePort
from posttrain.engines.process import EngineSetup, published_engine
from posttrain.engines.sampler import SamplingSettings
from posttrain.errors import EngineError
from posttrain.experience.answers import EngineAnswers, EngineJudge
from posttrain.experience.deliveries import Deliveries, TrainerScores
from posttrain.experience.driver import Driver
from posttrain.experience.group import Group
from posttrain.experience.schedule import Schedule
from posttrain.experience.servers import Servers, engine_starts, start_deadline
from posttrain.experience.trajectories import Trajectories
from posttrain.models.policy import Forward
from posttrain.types import Completion, Prompt

if TYPE_CHECKING:
    from posttrain.config import ModelConfig, RolloutConfig, SamplingConfig
    from posttrain.episodes.scene import Scene
    from posttrain.models.load import LoadedModel

PROBE_TEXTS, PROBE_TOKENS = 4, 16
"""Number of texts, and of tokens in each, in the proof if there are no prompts yet."""
SHORTEST = 4
"""Minimum number of tokens for which a row of the engines has room, because the proof needs them."""
CHUNK_TOKENS = 1024
"""Number of tokens whose log-probabilities are computed together for the proof."""


class Serving:
    """Answers prompts as a `Sampler` does, with the weights that the model has at the first request."""

    def __init__(
        self, loaded: LoadedModel, longest: int, driver: Driver, deliveries: Deliveries, *, turns: bool = False
    ) -> None:
        """`longest`: maximum tokens of a row, including its prompt. `turns`: whether completions have several turns."""
        self.tokenizer = loaded.tokenizer
        self.context_length = longest
        """Maximum tokens of prompt and completion together."""
        self.context_reason = loaded.context_reason if longest == loaded.context_length else " of its server"
        self._answers = EngineAnswers(self, lambda: driver, deliveries.newest, turns=turns)
        self.judge = EngineJudge(loaded.tokenizer, longest, lambda: driver, deliveries.newest)
        """A judge with the same weights."""

    def each(
        self, prompts: Sequence[Prompt], sampling: SamplingSettings, *, group_size: int, seed: int
    ) -> Iterator[tuple[int, int, Completion]]:
        """See `EngineAnswers.each`."""
        return self._answers.each(prompts, sampling, group_size=group_size, seed=seed)

    def generate(
        self, prompts: Sequence[Prompt], sampling: SamplingSettings, *, group_size: int, seed: int
    ) -> list[list[Completion]]:
        """Return `group_size` completions of each prompt, once all of them have ended."""
        found: list[list[Completion]] = [[] for _ in prompts]
        for place, _, completion in self.each(prompts, sampling, group_size=group_size, seed=seed):
            found[place].append(completion)
        return found


@contextmanager
def serving(
    rollout: RolloutConfig,
    sampling: SamplingConfig,
    loaded: LoadedModel,
    model: ModelConfig,
    *,
    longest: int,
    probe: Sequence[Sequence[int]] | None = None,
    say: Callable[[str], None],
    tolerance: float | None = None,
    scene: Scene | None = None,
) -> Iterator[Serving]:
    """Run engines for this model while the context lasts. They end with it, and with this process however it ends.

    `model` is the config of what was `loaded`; `sampling` has the sampling parameters; `longest` is the maximum tokens
    of a row. The weights are proven on the prompts `probe` (default: tokens from all over the vocabulary), within
    `tolerance` nats (default: what their precision allows). `scene` is for answers with several turns. `say` reports
    losses and recoveries. Raises ConfigError or ModelError if a server cannot start, EngineError if none is left.
    """
    temperature = sampling.temperature or 1.0
    proof = DeliveryProof.from_prompts(
        probe or _of_all_tokens(loaded),
        tolerance=tolerance or tolerance_for(loaded.compute_dtype),
        temperature=temperature,
    )
    forward = Forward(loaded.model, temperature=temperature, chunk_tokens=CHUNK_TOKENS, compute=loaded.compute)
    longest = max(longest, SHORTEST)
    folder = Path(tempfile.mkdtemp(prefix="posttrain-servers-"))
    keep = False
    try:
        with ExitStack() as stack:
            deliveries = Deliveries(loaded.model, proof, TrainerScores(forward, loaded.pad_id))
            stack.callback(deliveries.close)
            threads = max(1, cores() // rollout.num_engines)
            if rollout.engine == "vllm":
                servers = Servers(rollout, sampling, loaded, folder, longest=longest, threads=threads)
                starts = servers.starts(deliveries)
            else:
                setup = _setup(model, sampling, loaded, threads)
                starts = engine_starts(published_engine(rollout.engine), rollout, setup, deliveries, folder)
            trajectories = Trajectories.of(scene, sampling, rollout.num_engines)
            driver = deliveries.driver = _driver(rollout, starts, deliveries, say, trajectories)
            stack.callback(driver.close)
            if not rollout.url:
                count = f"{rollout.num_engines} server(s)"
                say(f"rollout.engine = {rollout.engine}: starting {count}, which takes half a minute")
            driver.start()
            driver.launch()
            yield Serving(loaded, longest, driver, deliveries, turns=scene is not None)
    except EngineError as error:
        keep = True
        raise EngineError(
            given=error.given,
            allowed=error.allowed,
            fix=f"Look into {folder}/engines/*.log. A server that is only slow needs a larger rollout.deadline "
            f"(now {rollout.deadline:g} s). With rollout.engine = local, this process answers.",
        ) from error
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _of_all_tokens(loaded: LoadedModel) -> list[list[int]]:
    """Return texts of equally spaced token ids. They mean nothing, and use distant rows of the embedding matrix."""
    size = loaded.model.config.get_text_config().vocab_size
    return [
        [(row + at * PROBE_TEXTS) * size // (PROBE_TEXTS * PROBE_TOKENS) for at in range(PROBE_TOKENS)]
        for row in range(PROBE_TEXTS)
    ]


def _setup(model: ModelConfig, sampling: SamplingConfig, loaded: LoadedModel, threads: int) -> EngineSetup:
    return EngineSetup(
        model=model.model_dump(mode="json"),
        lora=None,
        sampling=sampling.model_dump(mode="json"),
        seed=0,
        compute=loaded.compute.to_json(),
        keep_cache=False,
        threads=threads,
    )


def _driver(
    rollout: RolloutConfig,
    starts: Mapping[str, Callable[[], EnginePort]],
    deliveries: Deliveries,
    say: Callable[[str], None],
    trajectories: Trajectories | None,
) -> Driver:
    """Return a driver that has no step to feed."""
    return Driver(
        limits=Limits(prompts_per_step=1, group_size=1, last_version=0),
        engines=starts,
        schedule=Schedule(0, (), prompts_per_step=1),
        max_new_tokens=0,
        rewards=None,
        trains=_trained_by_nobody,
        no_signal=_trained_by_nobody,
        prove=deliveries.prove,
        deadline=rollout.deadline,
        start_deadline=start_deadline(rollout),
        say=say,
        trajectories=trajectories,
    )


def _trained_by_nobody(group: Group | Sequence[Group]) -> NoReturn:
    raise AssertionError(f"{group} was sampled for training")
