"""Every algorithm, by the name that a config uses. A new one is a file, a test and a line here."""

from posttrain.algorithms.base import Algorithm, Card, PolicyGradient
from posttrain.algorithms.cispo import CISPO
from posttrain.algorithms.clip_cov import ClipCov
from posttrain.algorithms.dapo import DAPO
from posttrain.algorithms.deepseek_v32 import DeepSeekV32
from posttrain.algorithms.distillation import Distillation
from posttrain.algorithms.dpo import DPO
from posttrain.algorithms.dppo import DPPO
from posttrain.algorithms.dr_grpo import DrGRPO
from posttrain.algorithms.gdpo import GDPO
from posttrain.algorithms.gmpo import GMPO
from posttrain.algorithms.grpo import GRPO
from posttrain.algorithms.gspo import GSPO
from posttrain.algorithms.gspo_token import GSPOToken
from posttrain.algorithms.kimi_k2 import KimiK2
from posttrain.algorithms.kimi_k15 import KimiK15
from posttrain.algorithms.kl_cov import KLCov
from posttrain.algorithms.pass_at_k import PassAtK
from posttrain.algorithms.policy_gradient import ComposedPolicyGradient
from posttrain.algorithms.ppo import PPO
from posttrain.algorithms.reinforce import REINFORCE
from posttrain.algorithms.reinforce_plus_plus import ReinforcePlusPlus
from posttrain.algorithms.reinforce_plus_plus_baseline import ReinforcePlusPlusBaseline
from posttrain.algorithms.remax import ReMax
from posttrain.algorithms.reward_model import RewardModel
from posttrain.algorithms.rloo import RLOO
from posttrain.algorithms.rows import GPG, LUSPO, OPO, LitePPO
from posttrain.algorithms.sapo import SAPO
from posttrain.algorithms.sft import SFT
from posttrain.algorithms.topr import TOPR
from posttrain.algorithms.vespo import VESPO

ALGORITHMS: dict[str, type[Algorithm]] = {
    "reinforce": REINFORCE,
    "remax": ReMax,
    "rloo": RLOO,
    "reinforce_plus_plus": ReinforcePlusPlus,
    "reinforce_plus_plus_baseline": ReinforcePlusPlusBaseline,
    "ppo": PPO,
    "grpo": GRPO,
    "dr_grpo": DrGRPO,
    "lite_ppo": LitePPO,
    "gdpo": GDPO,
    "dapo": DAPO,
    "gspo": GSPO,
    "gspo_token": GSPOToken,
    "luspo": LUSPO,
    "gmpo": GMPO,
    "cispo": CISPO,
    "sapo": SAPO,
    "vespo": VESPO,
    "clip_cov": ClipCov,
    "kl_cov": KLCov,
    "dppo": DPPO,
    "opo": OPO,
    "gpg": GPG,
    "topr": TOPR,
    "kimi_k15": KimiK15,
    "kimi_k2": KimiK2,
    "pass_at_k": PassAtK,
    "deepseek_v32": DeepSeekV32,
    "distillation": Distillation,
    "policy_gradient": ComposedPolicyGradient,
    "sft": SFT,
    "reward_model": RewardModel,
}

__all__ = [
    "ALGORITHMS",
    "CISPO",
    "DAPO",
    "DPO",
    "DPPO",
    "GDPO",
    "GMPO",
    "GPG",
    "GRPO",
    "GSPO",
    "LUSPO",
    "OPO",
    "PPO",
    "REINFORCE",
    "RLOO",
    "SAPO",
    "SFT",
    "TOPR",
    "VESPO",
    "Algorithm",
    "Card",
    "ClipCov",
    "ComposedPolicyGradient",
    "DeepSeekV32",
    "Distillation",
    "DrGRPO",
    "GSPOToken",
    "KLCov",
    "KimiK2",
    "KimiK15",
    "LitePPO",
    "PassAtK",
    "PolicyGradient",
    "ReMax",
    "ReinforcePlusPlus",
    "ReinforcePlusPlusBaseline",
    "RewardModel",
]
