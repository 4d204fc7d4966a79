"""The samplers that answer prompts in a run, and the judges that score the answers."""

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
    "only the first rank samples, from a whole copy of the model, while the others wait; with rollout.engines = "
    "N, engines sample instead"
)


class Samplers(NamedTuple):
    """The samplers that answer prompts."""

    training: HasRows
    """Samples with the weights published last. It needs a copy of them if some steps do not publish."""
    evaluation: HasRows
    """Samples with the present weights."""
    notes: Sequence[str] = ()
    """Warnings for the user."""
    acting: Acting | None = None
    """The environment and the tools; None if each completion is a single answer."""

    @property
    def decoding_notes(self) -> list[str]:
        """The reasons why decoding is slower than it could be. The check takes a few short forward passes."""
        return list(dict.fromkeys(sampler.note for sampler in (self.training, self.evaluation) if sampler.note))

    @staticmethod
    def of(config: RunConfig, loaded: LoadedModel, acting: Acting | None = None, *, published: bool) -> Samplers:
        """The samplers of a run. `published`: does the sampler for training get every version, so that it may decode
        with a copy of the weights?"""
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
    """The rewards and the check that score answers."""

    rewards: RewardSet | None
    """None for an algorithm that imitates given answers."""
    check: IndependentCheck | None
    """Never passed to any part that trains."""

    @staticmethod
    def of(config: RunConfig, folder: Path, resources: ExitStack, hosts: Hosts | None = None) -> Judges:
        """Find, import and inspect the rewards and checks of the run in `folder`.

        `hosts` starts their processes if it has room for workers. `resources` ends the processes."""
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
        """Raise ConfigError if a reward of single tokens would be lost.

        It is lost if the algorithm has one advantage per completion, or if tokens may be too old to be trained.
        `by_turn`: there is one advantage per turn. Every algorithm that reaches this check supports that."""
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
        """Give judges that are language models the policy's sampler, and the file of what the run spent on them."""
        for name, judges in self._asdict().items():
            if judges is not None:
                asked = policy if fleet is None else fleet.judging(policy, scores=name == "rewards")
                judges.bind(asked, config.model.chat_template_kwargs, ledger=folder / "judgements" / f"spent-{name}")

    @property
    def notes(self) -> list[str]:
        """Warnings for the user."""
        return [note for judges in self._sets for note in judges.notes]

    @property
    def facts(self) -> list[str]:
        """Sentences about how answers are judged; complete once the data has been checked."""
        return [fact for judges in self._sets for fact in judges.facts]

    @property
    def _sets(self) -> list[RewardSet | IndependentCheck]:
        return [judges for judges in (self.rewards, self.check) if judges is not None]
