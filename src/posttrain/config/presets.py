"""Presets: named sets of defaults. The meaning of a name never changes: a better preset gets a new name.

smoke: every phase of a run (sampling, update, checkpoint, evaluation) once or twice, as small as possible. Use it to
check that a model, a dataset and a reward fit together before a long run.

safe: a run that ends when an alarm fires, and that evaluates often enough for the alarms about held-out answers.

The others reproduce algorithms of other libraries in all numbers that affect the loss: the epsilon of the standard
deviation, the divisor of the loss, the place of the KL, the clipping, the correction for the sampler. You choose sizes
and the learning rate, except for AReaL's two, which set train.minibatches = 4: with a single update their ratio would
be 1. Each preset sets all values that it stands for, so that no change of our defaults affects it:

    trl-grpo             TRL's GRPO with loss_type = "grpo"; masked rows are counted, but per step, not per micro-batch
    trl-dapo             TRL's default, loss_type = "dapo": the mean over all tokens of the step
    trl-rloo             TRL's RLOO: the ratio of the whole completion, clipped, and the KL in its reward
    verl-grpo            verl's adv_estimator = grpo with its loss "vanilla", which always has a dual clip of 3
    verl-otb             verl's adv_estimator = optimal_token_baseline with the same loss
    openrlhf-group-norm  OpenRLHF's group_norm: k1 in the reward of each token, after the normalisation
    openrlhf-reinforce   OpenRLHF's reinforce without its clip of rewards: whitened over tokens, squares divided by n
    openrlhf-reinforce-clipped  the same with rewards clipped to +-10, OpenRLHF's default
    areal-decoupled      AReaL's decoupled PPO over group-normalised rewards, its weight masked above 5
    areal-decoupled-clipped  the same with rewards clipped to +-20 before they are normalised, AReaL's default
    trl-dpo              TRL's DPO with loss_type = "sigmoid", which ignores label_smoothing
    trl-ipo              TRL's DPO with loss_type = "ipo": log-ratios per token
    openrlhf-ipo         OpenRLHF's DPO with ipo: log-ratios summed over the answer
    trl-kto              TRL's KTO; its reference point covers the rows of one device, here the rows of the step
    trl-orpo             TRL's ORPO; its likelihood term also covers the prompt, here only the answer (RULE 38)
    trl-simpo            TRL's CPO with loss_type = "simpo" and cpo_alpha = 0, without which it adds a likelihood term

Not reproduced: OpenRLHF clips normalised rewards to +-10 (groups of about a hundred and more), and the KL of each token
to +-10; AReaL takes the KL in the reward from the log-probabilities of the sampler, here those of the trainer before
the update, and its recipe for GSM8K normalises a second time over the batch; TRL logs the KL as ratio * k3, whose
gradient is that of k3_corrected here, except that with importance_sampling_level = "sequence" TRL's ratio there is that
of the completion; verl's optimal token baseline trains the end of the longest of several answers with equal rewards.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from posttrain.algorithms import Algorithm


def _frozen(tree: Any) -> Any:
    return MappingProxyType({k: _frozen(v) for k, v in tree.items()}) if isinstance(tree, Mapping) else tree


PRESETS: Mapping[str, Mapping[str, Any]] = _frozen(
    yaml.load(
        Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )
)
"""Name -> section -> setting -> value."""


class AlgorithmPresets(Mapping[str, "Algorithm"]):
    """The algorithms of the presets: `presets["trl-grpo"]` is one to try on plain tensors."""

    def __getitem__(self, name: str) -> Algorithm:
        from posttrain.algorithms import ALGORITHMS
        from posttrain.algorithms.registry import UnknownAlgorithm

        if name not in self._names:
            close = difflib.get_close_matches(str(name), self._names, n=1)
            raise UnknownAlgorithm(
                given=f"there is no preset {name!r} of an algorithm",
                allowed=", ".join(self._names),
                fix=f"Did you mean {close[0]!r}?" if close else "",
            )
        settings = dict(PRESETS[name]["algorithm"])
        return ALGORITHMS[settings.pop("name")](**settings)

    @property
    def _names(self) -> list[str]:
        return [name for name, preset in PRESETS.items() if "algorithm" in preset]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


presets = AlgorithmPresets()
