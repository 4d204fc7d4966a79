"""The claims: what each one says, which numbers judge it, and how its setting was changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

SCORE = "held-out accuracy"


@dataclass(frozen=True)
class Number:
    """A claim about one number: `first` has more, less, or about half as much as `second`."""

    name: str
    first: str
    second: str
    says: Literal["more", "less", "about half"]


@dataclass(frozen=True)
class Claim:
    """One claim from the literature, measured by benchmarks/claims/KEY.yaml."""

    key: str
    says: str
    source: str
    numbers: Sequence[Number]
    """The numbers that judge the claim. The first one decides."""
    note: str = ""
    """The characteristics of the setting, and the limits of the answer."""
    changed: str = ""
    """How the setting differs from its first version, which preceded all runs. The runs on file use new seeds."""


CLAIMS = (
    Claim(
        "ppo_time",
        "A step of PPO takes longer than one of REINFORCE++.",
        "REINFORCE++, arXiv:2501.03262",
        [Number("training seconds per step", "ppo", "reinforce_plus_plus", "more")],
        "The seconds cover scoring and updating. They leave out sampling, which is the same for both. PPO updates a "
        "critic of the policy's size and queries a reference model. The runs were made one at a time.",
    ),
    Claim(
        "memory",
        "Without a critic, about half of PPO's memory is enough.",
        "GRPO, arXiv:2402.03300; REINFORCE++, arXiv:2501.03262",
        [Number("peak memory, GB", "reinforce_plus_plus", "ppo", "about half")],
        "The model is a random Llama with 50 million parameters in float32, and the answers are short. The memory is "
        "the resident memory of the whole process, so it includes Python and its libraries on both sides.",
    ),
    Claim(
        "length_bias",
        "GRPO lets wrong answers grow longer than Dr. GRPO does.",
        "Dr. GRPO, arXiv:2503.20783",
        [Number("tokens of a wrong answer", "grpo", "dr_grpo", "more")],
        "A right answer has six letters, and the limit is 24 tokens. So a wrong answer can be much longer than a right "
        "one.",
        "the learning rate from 3e-4 to 2e-4 and the steps from 50 to 60",
    ),
    Claim(
        "clip_higher",
        "A wider upper clip (0.28 instead of 0.2) keeps the entropy higher.",
        "DAPO, arXiv:2503.14476",
        [
            Number("entropy at the end", "clip-0.28", "clip-0.2", "more"),
            Number("share of tokens clipped above", "clip-0.28", "clip-0.2", "less"),
        ],
        "Each batch gets eight updates, so that some ratios reach the clip. The runs are short, so the entropy hardly "
        "falls.",
        "the learning rate from 2e-4 to 1e-4",
    ),
    Claim(
        "dynamic_sampling",
        "Dynamic sampling needs fewer updates.",
        "DAPO, arXiv:2503.14476",
        [
            Number("steps to the target", "dynamic", "as-sampled", "less"),
            Number(SCORE, "dynamic", "as-sampled", "more"),
        ],
        "Both arms have the same number of steps, so dynamic sampling has sampled more. The tokens show how much more.",
        "the learning rate from 3e-4 to 1e-4, the prompts per step from 16 to 32, and the target, which decides the "
        "claim, from 40% to 30%",
    ),
    Claim(
        "gspo_moe",
        "On a mixture of experts, GSPO is steadier than GRPO.",
        "GSPO, arXiv:2507.18071",
        [
            Number("spread of token ratios", "gspo", "grpo", "less"),
            Number("largest KL within a step", "gspo", "grpo", "less"),
        ],
        "The model has 16 experts, 4 of them per token. Each batch gets four updates. The sampler computes like the "
        "trainer.",
        "the learning rate from 2e-4 to 1e-4 and the steps from 30 to 40",
    ),
    Claim(
        "stale",
        "On stale samples, the decoupled loss is better than the naive one.",
        "Hilton et al., arXiv:2110.00641; AReaL, arXiv:2505.24298",
        [Number(SCORE, "decoupled", "naive", "more"), Number("largest KL within a step", "decoupled", "naive", "less")],
        "The sampler gets new weights every eighth step (`train.publish_every`). Samples are 3.5 steps old on average.",
        "the learning rate from 3e-4 to 2e-4, and the prompts per step from 16 to 32. A third arm, naive on fresh "
        "samples, was removed, so the cost of staleness itself is not measured here",
    ),
)
