"""Every algorithm, by the name that a config uses. A new one is a file, a test and a line here."""

from posttrain.algorithms.base import Algorithm, Card, PolicyGradient
from posttrain.algorithms.cispo import CISPO
from posttrain.algorithms.clip_cov import ClipCov
from posttrain.algorithms.dapo import DAPO
from posttrain.algorithms.dppo import DPPO
from posttrain.algorithms.dr_grpo import DrGRPO
from posttrain.algorithms.gmpo import GMPO
from posttrain.algorithms.grpo import GRPO
from posttrain.algorithms.gspo import GSPO
from posttrain.algorithms.gspo_token import GSPOToken
from posttrain.algorithms.kl_cov import KLCov
from posttrain.algorithms.reinforce import REINFORCE
from posttrain.algorithms.reward_model import RewardModel
from posttrain.algorithms.rloo import RLOO
from posttrain.algorithms.sapo import SAPO
from posttrain.algorithms.sft import SFT
from posttrain.algorithms.vespo import VESPO

ALGORITHMS: dict[str, type[Algorithm]] = {
    "reinforce": REINFORCE,
    "rloo": RLOO,
    "grpo": GRPO,
    "dr_grpo": DrGRPO,
    "dapo": DAPO,
    "gspo": GSPO,
    "gspo_token": GSPOToken,
    "gmpo": GMPO,
    "cispo": CISPO,
    "sapo": SAPO,
    "vespo": VESPO,
    "clip_cov": ClipCov,
    "kl_cov": KLCov,
    "dppo": DPPO,
    "sft": SFT,
    "reward_model": RewardModel,
}

__all__ = [
    "ALGORITHMS",
    "CISPO",
    "DAPO",
    "DPPO",
    "GMPO",
    "GRPO",
    "GSPO",
    "REINFORCE",
    "RLOO",
    "SAPO",
    "SFT",
    "VESPO",
    "Algorithm",
    "Card",
    "ClipCov",
    "DrGRPO",
    "GSPOToken",
    "KLCov",
    "PolicyGradient",
    "RewardModel",
]
