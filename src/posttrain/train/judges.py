"""Who answers prompts in a run, and who scores the answers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from posttrain.algorithms import ALGORITHMS, Algorithm
from posttrain.config import in_folder
from posttrain.engines import Sampler, make_sampler
from posttrain.errors import ConfigError, ModelError
from posttrain.models.entering import is_sharded
from posttrain.models.load import LoadedModel
from posttrain.rewards import RewardSet, build_rewards
from posttrain.train.hosts import Hosts
from posttrain.train.sharded_sampler import ShardedPolicySampler
from posttrain.watch.check import IndependentCheck

if TYPE_CHECKING:
    from posttrain.config import CheckConfig, RewardConfig, RunConfig
    from posttrain.engines.row_stream import HasRows
    from posttrain.episodes.acting import Acting
    from posttrain.train.fleet import Fleet


ALONE = (
    "the first rank samples alone, from a whole copy of the model, while the others wait; with rollout.engines = "
    "N, engines sample instead"
)


class Samplers(NamedTuple):
    """What answers prompts."""

    training: HasRows
    """With the weights that were published last; its own copy of them where that is not after every step."""
    evaluation: HasRows
    """With the present weights."""
    notes: Sequence[str] = ()
    """What the user should be warned of."""
    acting: Acting | None = None
    """The environment and the tools; None where each completion is one answer."""

    @property
    def decoding_notes(self) -> list[str]:
        """Why decoding is slower than it could be; finding out takes a few short passes."""
        return list(dict.fromkeys(sampler.note for sampler in (self.training, self.evaluation) if sampler.note))

    @staticmethod
    def of(config: RunConfig, loaded: LoadedModel, acting: Acting | None = None, *, published: bool) -> Samplers:
        """`published`: does the sampler for training get every version, so that it may decode with a copy?"""
        if is_sharded(loaded.model):
            follows = published and config.train.publish_every == 1
            training, present = (ShardedPolicySampler(config, loaded, present=one) for one in (False, True))
            notes = [ALONE] if published else []
            return Samplers(training, training if follows else present, notes, acting)
        every, notes = 1 if config.rollout.num_engines else config.train.publish_every, list[str]()
        if published and loaded.compute.sampler == "packed":
            try:
                copy = make_sampler(loaded, "copied")
                return Samplers(copy, copy if every == 1 else make_sampler(loaded), acting=acting)
            except ModelError as error:
                notes = [f"sampling is slower than it could be: {error.given}"]
        loaded = replace(loaded, compute=replace(loaded.compute, sampler="shared"))
        present = make_sampler(loaded)
        return Samplers(present if every == 1 else make_sampler(loaded, "copied"), present, notes, acting)


class Judges(NamedTuple):
    """What scores answers."""

    rewards: RewardSet | None
    """None for an algorithm that imitates."""
    check: IndependentCheck | None
    """Never passed to what trains."""

    @staticmethod
    def of(config: RunConfig, folder: Path, resources: ExitStack, hosts: Hosts | None = None) -> Judges:
        """Found, imported and understood; `folder` is that of the run, `resources` ends their processes, which are
        started by `hosts`, where it has room for some."""
        elsewhere = (
            {} if hosts is None or not hosts.workers else {"workers": hosts.workers, "start": hosts.start_worker}
        )

        by_turn = config.environment.credit != "trajectory"

        def build(entries: Sequence[RewardConfig] | Sequence[CheckConfig], training: bool) -> RewardSet | None:
            if not entries:
                return None
            how = {"training": training, "by_turn": training and by_turn, **elsewhere}
            found = build_rewards(in_folder(entries, folder), device=config.model.device, **how)
            return resources.enter_context(found)

        rewards, check = build(config.rewards, True), build(config.check, False)
        return Judges(rewards=rewards, check=None if check is None else IndependentCheck(check))

    def refuse_token_rewards(self, algorithm: Algorithm, run_ahead: int = 0, *, by_turn: bool = False) -> None:
        """ConfigError where single tokens have rewards and the algorithm has one advantage for all of a completion, or
        tokens may be too old to be trained: their rewards would be lost to the others. `by_turn`: the advantages are
        those of turns, which every algorithm can have that gets so far."""
        given = [] if self.rewards is None else [c.label for c in self.rewards.components if c.signature.per_token]
        if given and run_ahead:
            raise ConfigError(
                given=f'reward "{given[0]}" gives each token a reward, but train.run_ahead = {run_ahead} may '
                "leave tokens out of the loss",
                allowed="rewards of whole completions, or train.run_ahead = 0",
                fix="Set train.run_ahead = 0, or let the reward return one number per completion.",
            )
        if given and not algorithm.reads_token_rewards and not by_turn:
            able = [key for key, cls in ALGORITHMS.that_load() if cls.reads_token_rewards is True]
            raise ConfigError(
                given=f'reward "{given[0]}" gives each token a reward, but {algorithm.key} has one advantage per '
                "completion",
                allowed=f"{', '.join(able)}, or policy_gradient with baseline = optimal_token, critic, greedy, none, "
                "batch_mean or moving_average",
                fix="Set algorithm: reinforce_plus_plus, or let the reward return one number per completion.",
            )

    def bind(self, policy: Sampler, config: RunConfig, folder: Path, fleet: Fleet | None) -> None:
        """Let language models among them know the policy, and what the run has spent on them before."""
        for name, judges in self._asdict().items():
            if judges is not None:
                asked = policy if fleet is None else fleet.judging(policy, scores=name == "rewards")
                judges.bind(asked, config.model.chat_template_kwargs, ledger=folder / "judgements" / f"spent-{name}")

    @property
    def notes(self) -> list[str]:
        """What the user should be warned of."""
        return [note for judges in self._sets for note in judges.notes]

    @property
    def facts(self) -> list[str]:
        """By what is judged; known once the data has been checked."""
        return [fact for judges in self._sets for fact in judges.facts]

    @property
    def _sets(self) -> list[RewardSet | IndependentCheck]:
        return [judges for judges in (self.rewards, self.check) if judges is not None]
