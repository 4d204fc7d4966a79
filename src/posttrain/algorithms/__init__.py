"""Every algorithm, by the name that a config uses. A new one is a file, a test and a line here."""

from posttrain.algorithms.base import Algorithm, Card, PolicyGradient
from posttrain.algorithms.dr_grpo import DrGRPO
from posttrain.algorithms.grpo import GRPO
from posttrain.algorithms.reinforce import REINFORCE
from posttrain.algorithms.rloo import RLOO
from posttrain.algorithms.sft import SFT

ALGORITHMS: dict[str, type[Algorithm]] = {
    "reinforce": REINFORCE,
    "rloo": RLOO,
    "grpo": GRPO,
    "dr_grpo": DrGRPO,
    "sft": SFT,
}

__all__ = ["ALGORITHMS", "GRPO", "REINFORCE", "RLOO", "SFT", "Algorithm", "Card", "DrGRPO", "PolicyGradient"]
