"""Decoupled PPO: a trust region around fresh weights for data of stale ones (AReaL, arXiv:2505.24298).

    mu          the policy that sampled a token, some versions old; its log-probabilities are recorded then
    prox        the policy at the start of this update: old_logprobs, computed by the trainer
    u = policy / prox         the ratio, with gradient          w = prox / mu         a weight, without
    L = -w min(u A, clip(u, 1 - clip_low, 1 + clip_high) A)     w = 0 where it exceeds high

PPO's clip has two jobs: to undo the bias of old data and to keep the update small. Centred at a stale mu it does the
second badly. Here the weight does the first and the clip, around prox, the second. With prox = mu it is PPO.
"""

from __future__ import annotations

from posttrain.algorithms.declared import Card
from posttrain.algorithms.metrics import RATIO_METRICS, clip_formulas
from posttrain.algorithms.off_policy.metrics import CORRECTION_METRICS

ANY = "any"
"""Decoupling takes none of these choices: it is a correction, usable with each algorithm."""

CARD = Card(
    title="Decoupled PPO",
    paper="AReaL, arXiv:2505.24298",
    summary="The clip is centred at the newest policy, and a weight makes up for how old the samples are.",
    choices={
        "baseline": ANY,
        "normalisation": ANY,
        "ratio": "token",
        "trust_region": "clip",
        "kl": ANY,
        "aggregation": ANY,
        "correction": "decoupled",
        "filter": ANY,
        "shaping": ANY,
    },
    use_when="The sampler runs behind the trainer (train.publish_every above 1, or asynchronous sampling), and each "
    "batch is used for several updates.",
    avoid_when="Samples are fresh and the sampler computes as the trainer does: the weight is 1, and the pass for "
    "old_logprobs is made for nothing but the several updates.",
    differs=(
        "It is a setting and not an algorithm: algorithm: {name: grpo, correction: decoupled}, or ppo, dapo and every "
        "other one with a ratio. The preset areal-decoupled is AReaL's own recipe.",
        "The paper leaves the weight unbounded; AReaL masks or clamps it, and so here: masked above 5. A masked token "
        "keeps its place in the denominator.",
        "In AReaL use_decoupled_loss without a filter moves the centre of the clip and applies no weight at all.",
        "correction = a3po interpolates prox between mu and the policy by the age of the token, which saves the pass.",
        "TRL and OpenRLHF weigh by token or completion around the same centre; verl calls it rollout correction, and "
        "bypass_mode = true is correction = bypass here.",
    ),
    sources={
        "anchor": "trainer: the paper's proximal policy",
        "level": "token: the paper, eq. 5",
        "action": "mask: AReaL's recipes",
        "score": "weight: AReaL",
        "low": "none: AReaL",
        "high": "5: AReaL",
        "reject": "none: the paper",
        "normalize": "false: the paper",
        "rejected_in_denominator": "true: AReaL, TRL, OpenRLHF",
    },
    metrics=clip_formulas() | RATIO_METRICS | CORRECTION_METRICS,
)
