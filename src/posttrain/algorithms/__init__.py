"""Every algorithm, by the name that a config uses. A new one is a file, a test and a line here."""

from posttrain.algorithms.aot import AOT
from posttrain.algorithms.apo_down import APODown
from posttrain.algorithms.apo_zero import APOZero
from posttrain.algorithms.base import Algorithm, Card, PolicyGradient
from posttrain.algorithms.bco import BCO
from posttrain.algorithms.cdpo import CDPO
from posttrain.algorithms.cispo import CISPO
from posttrain.algorithms.clip_cov import ClipCov
from posttrain.algorithms.cpo import CPO
from posttrain.algorithms.dapo import DAPO
from posttrain.algorithms.deepseek_v32 import DeepSeekV32
from posttrain.algorithms.discopop import DiscoPOP
from posttrain.algorithms.distillation import Distillation
from posttrain.algorithms.dpo import DPO
from posttrain.algorithms.dpop import DPOP
from posttrain.algorithms.dppo import DPPO
from posttrain.algorithms.dr_grpo import DrGRPO
from posttrain.algorithms.exo import EXO
from posttrain.algorithms.gdpo import GDPO
from posttrain.algorithms.gmpo import GMPO
from posttrain.algorithms.grpo import GRPO
from posttrain.algorithms.gspo import GSPO
from posttrain.algorithms.gspo_token import GSPOToken
from posttrain.algorithms.hinge import Hinge
from posttrain.algorithms.ipo import IPO
from posttrain.algorithms.kimi_k2 import KimiK2
from posttrain.algorithms.kimi_k15 import KimiK15
from posttrain.algorithms.kl_cov import KLCov
from posttrain.algorithms.kto import KTO
from posttrain.algorithms.length_normalized_dpo import LengthNormalizedDPO
from posttrain.algorithms.nca import NCA
from posttrain.algorithms.online_dpo import OnlineDPO
from posttrain.algorithms.orpo import ORPO
from posttrain.algorithms.pass_at_k import PassAtK
from posttrain.algorithms.policy_gradient import ComposedPolicyGradient
from posttrain.algorithms.ppo import PPO
from posttrain.algorithms.process_reward_model import ProcessRewardModel
from posttrain.algorithms.reinforce import REINFORCE
from posttrain.algorithms.reinforce_plus_plus import ReinforcePlusPlus
from posttrain.algorithms.reinforce_plus_plus_baseline import ReinforcePlusPlusBaseline
from posttrain.algorithms.remax import ReMax
from posttrain.algorithms.reward_model import RewardModel
from posttrain.algorithms.reward_regression import RewardRegression
from posttrain.algorithms.rloo import RLOO
from posttrain.algorithms.robust_dpo import RobustDPO
from posttrain.algorithms.rows import GPG, LUSPO, OPO, LitePPO
from posttrain.algorithms.rpo import RPO
from posttrain.algorithms.sapo import SAPO
from posttrain.algorithms.sft import SFT
from posttrain.algorithms.simpo import SimPO
from posttrain.algorithms.sppo import SPPO
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
    "online_dpo": OnlineDPO,
    "dpo": DPO,
    "cdpo": CDPO,
    "robust_dpo": RobustDPO,
    "length_normalized_dpo": LengthNormalizedDPO,
    "hinge": Hinge,
    "exo": EXO,
    "discopop": DiscoPOP,
    "ipo": IPO,
    "rpo": RPO,
    "dpop": DPOP,
    "cpo": CPO,
    "simpo": SimPO,
    "orpo": ORPO,
    "kto": KTO,
    "bco": BCO,
    "apo_zero": APOZero,
    "apo_down": APODown,
    "nca": NCA,
    "sppo": SPPO,
    "aot": AOT,
    "sft": SFT,
    "reward_model": RewardModel,
    "reward_regression": RewardRegression,
    "process_reward_model": ProcessRewardModel,
}

__all__ = [
    "ALGORITHMS",
    "AOT",
    "BCO",
    "CDPO",
    "CISPO",
    "CPO",
    "DAPO",
    "DPO",
    "DPOP",
    "DPPO",
    "EXO",
    "GDPO",
    "GMPO",
    "GPG",
    "GRPO",
    "GSPO",
    "IPO",
    "KTO",
    "LUSPO",
    "NCA",
    "OPO",
    "ORPO",
    "PPO",
    "REINFORCE",
    "RLOO",
    "RPO",
    "SAPO",
    "SFT",
    "SPPO",
    "TOPR",
    "VESPO",
    "APODown",
    "APOZero",
    "Algorithm",
    "Card",
    "ClipCov",
    "ComposedPolicyGradient",
    "DeepSeekV32",
    "DiscoPOP",
    "Distillation",
    "DrGRPO",
    "GSPOToken",
    "Hinge",
    "KLCov",
    "KimiK2",
    "KimiK15",
    "LengthNormalizedDPO",
    "LitePPO",
    "OnlineDPO",
    "PassAtK",
    "PolicyGradient",
    "ProcessRewardModel",
    "ReMax",
    "ReinforcePlusPlus",
    "ReinforcePlusPlusBaseline",
    "RewardModel",
    "RewardRegression",
    "RobustDPO",
    "SimPO",
]
