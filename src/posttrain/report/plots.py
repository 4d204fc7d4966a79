"""The curated plots of a report: which metrics are drawn together, and the sentence that says how to read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from posttrain.report.svg import compact, percent

Form = Callable[[float], str]


@dataclass(frozen=True, kw_only=True)
class Plot:
    """What to draw: metric name -> legend, and how."""

    title: str
    metrics: Mapping[str, str]
    hint: str = ""
    form: Form = compact
    low: float | None = 0.0
    high: float | None = None
    log: bool = False
    invert: bool = False
    """Draw 1 - value: the share with signal from the share without."""


PLOTS = (
    Plot(
        title="Groups with signal",
        metrics={"frac_reward_zero_std": "share of groups"},
        hint="Groups whose answers got different rewards. The others move no weight.",
        form=percent,
        high=1.0,
        invert=True,
    ),
    Plot(
        title="Completion length",
        metrics={"completions/mean_length": "all", "completions/mean_terminated_length": "ended by themselves"},
        hint="Tokens. The band runs from the shortest to the longest answer.",
    ),
    Plot(
        title="Truncated and unscored",
        metrics={"completions/clipped_ratio": "truncated", "unscored_fraction": "unscored"},
        hint="Truncated answers ran into the length limit; unscored ones got no reward and were left out.",
        form=percent,
        high=0.1,
    ),
    Plot(
        title="Entropy",
        metrics={"entropy": "nats per token"},
        hint="Falls as the model becomes sure; a collapse ends exploration.",
    ),
    Plot(
        title="KL to the reference",
        metrics={"kl": "k3, nats per token"},
        hint="How far the policy has moved from the model it started from.",
    ),
    Plot(
        title="Size of the update",
        metrics={"policy/approx_kl_k1": "k1", "policy/approx_kl_k2": "k2", "policy/approx_kl_k3": "k3"},
        hint="Estimates of the KL from the policy that sampled to the policy being trained, nats per token.",
        low=None,
    ),
    Plot(
        title="Gradient norm", metrics={"grad_norm": "before clipping"}, hint="Length of the gradient of all weights."
    ),
    Plot(
        title="Clipped tokens",
        metrics={
            "clip_ratio/low_mean": "low, advantage < 0",
            "clip_ratio/high_mean": "high, advantage > 0",
            "clip_ratio/region_mean": "together",
        },
        hint="Share of tokens whose ratio left the clipping range: 0 in the first update on fresh samples.",
        form=percent,
        high=0.01,
    ),
    Plot(
        title="Sampler against trainer",
        metrics={"sampling/sampling_logp_difference/mean": "mean", "sampling/sampling_logp_difference/max": "largest"},
        hint="Difference of their log-probabilities of the same tokens, in nats.",
        log=True,
    ),
    Plot(
        title="Loss",
        metrics={"loss": "loss"},
        hint="Near 0 by construction for group-relative advantages; not a measure of progress.",
        low=None,
    ),
    Plot(
        title="Reward margin",
        metrics={"rewards/margins": "chosen − rejected"},
        hint="Difference of what the loss takes the two answers of a training pair to be worth.",
        low=None,
    ),
    Plot(
        title="Training pairs in order",
        metrics={"rewards/accuracies": "share"},
        hint="How often the chosen answer is worth more. Near 1 with growing margins, pairs are learned by heart.",
        form=percent,
        high=1.0,
    ),
    Plot(
        title="Likelihood of the answers",
        metrics={"logps/chosen": "chosen", "logps/rejected": "rejected"},
        hint="Summed log-probability, nats per answer. Where both fall, likelihood goes to answers nobody compared.",
        low=None,
    ),
    Plot(
        title="Worth of the answers",
        metrics={"rewards/chosen": "chosen", "rewards/rejected": "rejected"},
        hint="What the loss takes them to be worth, each by itself.",
        low=None,
    ),
    Plot(title="Perplexity", metrics={"sft/perplexity": "training rows"}, hint="exp of the loss per token.", low=1.0),
    Plot(
        title="Token accuracy",
        metrics={"sft/token_accuracy": "training rows"},
        hint="Share of trained tokens that were the most likely ones at their places.",
        form=percent,
        high=1.0,
    ),
    Plot(title="Learning rate", metrics={"learning_rate": "learning rate"}),
    Plot(
        title="Memory",
        metrics={"memory/rss_gb": "process", "memory/peak_rss_gb": "its peak", "memory/peak_cuda_gb": "GPU, peak"},
        hint="Gigabytes.",
    ),
)
