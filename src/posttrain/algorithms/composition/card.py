"""The card of `policy_gradient`."""

from __future__ import annotations

from posttrain.algorithms.composition.parameters import SOURCES
from posttrain.algorithms.critic import VALUE_METRICS
from posttrain.algorithms.declared import Card, row
from posttrain.algorithms.kimi_k15 import SQUARED_LOG_RATIO
from posttrain.algorithms.metrics import DUAL_CLIP_METRICS, clip_formulas

OPEN = "the row of GRPO"

POLICY_GRADIENT_CARD = Card(
    title="Policy gradient: the open composition",
    paper="all of the family; each choice names its own",
    summary="Every policy-gradient method as nine choices by name, for the ones that have no name yet.",
    choices=row("group_mean group_std token clip loss sequence_mean auto none none"),
    use_when="A method differs from a named one in one choice, or its numbers have to be those of another library.",
    avoid_when="A named algorithm says the same: its settings are fewer, and its page tells when to use it.",
    differs=(
        "The KL in the reward is not divided by a scale: with group_std it enters after the normalisation, as OpenRLHF "
        "has it; whiten_tokens whitens the sum of both.",
        "What PPO and Kimi K2 add beside a row is theirs alone: an adaptive KL coefficient, whitened rewards, a "
        "next-token loss on other data.",
        "Refused: combinations without gradient or with a wrong one, and parameters that no chosen part reads.",
    ),
    sources={
        **dict.fromkeys(
            ("baseline", "normalisation", "ratio", "trust_region", "kl", "aggregation", "filter", "shaping"), OPEN
        ),
        **SOURCES,
    },
    metrics={
        **clip_formulas("the elements that have a ratio: trained tokens, or completions", "u"),
        **DUAL_CLIP_METRICS,
        "policy/weight_clip_fraction": "weight_clip: share of them whose weight is held at a bound",
        "policy/gate_mean": "soft_gate: mean of the gate over them",
        "policy/kernel_mean": "kernel: mean of the weight over the trained tokens",
        "policy/selected_fraction": "clip_cov, kl_cov: share of the trained tokens that are chosen",
        "policy/weight_mean": "truncated_negatives: mean of the weight over the completions",
        "policy/dropped_fraction": "off_policy_negatives: share of the completions that leave the policy term",
        **SQUARED_LOG_RATIO,
        **VALUE_METRICS,
    },
)
