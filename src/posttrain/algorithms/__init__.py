"""All algorithms, by the names that configs use. A new algorithm needs a file, a test and two lines here.

Algorithms are imported lazily: `posttrain explain grpo` reads one file and not sixty.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from posttrain.algorithms.registry import Registry

if TYPE_CHECKING:
    from posttrain.algorithms.aot import AOT as AOT
    from posttrain.algorithms.apo_down import APODown as APODown
    from posttrain.algorithms.apo_zero import APOZero as APOZero
    from posttrain.algorithms.base import Algorithm as Algorithm
    from posttrain.algorithms.base import Card as Card
    from posttrain.algorithms.base import PolicyGradient as PolicyGradient
    from posttrain.algorithms.bco import BCO as BCO
    from posttrain.algorithms.cdpo import CDPO as CDPO
    from posttrain.algorithms.cispo import CISPO as CISPO
    from posttrain.algorithms.clip_cov import ClipCov as ClipCov
    from posttrain.algorithms.cpo import CPO as CPO
    from posttrain.algorithms.dapo import DAPO as DAPO
    from posttrain.algorithms.deepseek_v32 import DeepSeekV32 as DeepSeekV32
    from posttrain.algorithms.discopop import DiscoPOP as DiscoPOP
    from posttrain.algorithms.distillation import Distillation as Distillation
    from posttrain.algorithms.dpo import DPO as DPO
    from posttrain.algorithms.dpop import DPOP as DPOP
    from posttrain.algorithms.dppo import DPPO as DPPO
    from posttrain.algorithms.dr_grpo import DrGRPO as DrGRPO
    from posttrain.algorithms.exo import EXO as EXO
    from posttrain.algorithms.gdpo import GDPO as GDPO
    from posttrain.algorithms.gmpo import GMPO as GMPO
    from posttrain.algorithms.grpo import GRPO as GRPO
    from posttrain.algorithms.gspo import GSPO as GSPO
    from posttrain.algorithms.gspo_token import GSPOToken as GSPOToken
    from posttrain.algorithms.hinge import Hinge as Hinge
    from posttrain.algorithms.ipo import IPO as IPO
    from posttrain.algorithms.kimi_k2 import KimiK2 as KimiK2
    from posttrain.algorithms.kimi_k15 import KimiK15 as KimiK15
    from posttrain.algorithms.kl_cov import KLCov as KLCov
    from posttrain.algorithms.kto import KTO as KTO
    from posttrain.algorithms.length_normalized_dpo import LengthNormalizedDPO as LengthNormalizedDPO
    from posttrain.algorithms.mpo import MPO as MPO
    from posttrain.algorithms.nca import NCA as NCA
    from posttrain.algorithms.online_dpo import OnlineDPO as OnlineDPO
    from posttrain.algorithms.orpo import ORPO as ORPO
    from posttrain.algorithms.pass_at_k import PassAtK as PassAtK
    from posttrain.algorithms.policy_gradient import ComposedPolicyGradient as ComposedPolicyGradient
    from posttrain.algorithms.ppo import PPO as PPO
    from posttrain.algorithms.process_reward_model import ProcessRewardModel as ProcessRewardModel
    from posttrain.algorithms.reinforce import REINFORCE as REINFORCE
    from posttrain.algorithms.reinforce_plus_plus import ReinforcePlusPlus as ReinforcePlusPlus
    from posttrain.algorithms.reinforce_plus_plus_baseline import ReinforcePlusPlusBaseline as ReinforcePlusPlusBaseline
    from posttrain.algorithms.remax import ReMax as ReMax
    from posttrain.algorithms.reward_model import RewardModel as RewardModel
    from posttrain.algorithms.reward_regression import RewardRegression as RewardRegression
    from posttrain.algorithms.rloo import RLOO as RLOO
    from posttrain.algorithms.robust_dpo import RobustDPO as RobustDPO
    from posttrain.algorithms.rows import DRO as DRO
    from posttrain.algorithms.rows import GPG as GPG
    from posttrain.algorithms.rows import LUSPO as LUSPO
    from posttrain.algorithms.rows import OPO as OPO
    from posttrain.algorithms.rows import GRPOPassK as GRPOPassK
    from posttrain.algorithms.rows import LitePPO as LitePPO
    from posttrain.algorithms.rows import MaxRL as MaxRL
    from posttrain.algorithms.rpo import RPO as RPO
    from posttrain.algorithms.sapo import SAPO as SAPO
    from posttrain.algorithms.sft import SFT as SFT
    from posttrain.algorithms.simpo import SimPO as SimPO
    from posttrain.algorithms.sppo import SPPO as SPPO
    from posttrain.algorithms.topr import TOPR as TOPR
    from posttrain.algorithms.vespo import VESPO as VESPO

ALGORITHMS = Registry(
    {  # name: file, class
        "reinforce": "reinforce:REINFORCE",
        "remax": "remax:ReMax",
        "rloo": "rloo:RLOO",
        "reinforce_plus_plus": "reinforce_plus_plus:ReinforcePlusPlus",
        "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline:ReinforcePlusPlusBaseline",
        "ppo": "ppo:PPO",
        "grpo": "grpo:GRPO",
        "dr_grpo": "dr_grpo:DrGRPO",
        "lite_ppo": "rows:LitePPO",
        "gdpo": "gdpo:GDPO",
        "dapo": "dapo:DAPO",
        "gspo": "gspo:GSPO",
        "gspo_token": "gspo_token:GSPOToken",
        "luspo": "rows:LUSPO",
        "gmpo": "gmpo:GMPO",
        "cispo": "cispo:CISPO",
        "sapo": "sapo:SAPO",
        "vespo": "vespo:VESPO",
        "clip_cov": "clip_cov:ClipCov",
        "kl_cov": "kl_cov:KLCov",
        "dppo": "dppo:DPPO",
        "opo": "rows:OPO",
        "gpg": "rows:GPG",
        "maxrl": "rows:MaxRL",
        "dro": "rows:DRO",
        "grpo_passk": "rows:GRPOPassK",
        "topr": "topr:TOPR",
        "kimi_k15": "kimi_k15:KimiK15",
        "kimi_k2": "kimi_k2:KimiK2",
        "pass_at_k": "pass_at_k:PassAtK",
        "deepseek_v32": "deepseek_v32:DeepSeekV32",
        "distillation": "distillation:Distillation",
        "policy_gradient": "policy_gradient:ComposedPolicyGradient",
        "online_dpo": "online_dpo:OnlineDPO",
        "dpo": "dpo:DPO",
        "cdpo": "cdpo:CDPO",
        "robust_dpo": "robust_dpo:RobustDPO",
        "length_normalized_dpo": "length_normalized_dpo:LengthNormalizedDPO",
        "hinge": "hinge:Hinge",
        "exo": "exo:EXO",
        "discopop": "discopop:DiscoPOP",
        "ipo": "ipo:IPO",
        "rpo": "rpo:RPO",
        "dpop": "dpop:DPOP",
        "mpo": "mpo:MPO",
        "cpo": "cpo:CPO",
        "simpo": "simpo:SimPO",
        "orpo": "orpo:ORPO",
        "kto": "kto:KTO",
        "bco": "bco:BCO",
        "apo_zero": "apo_zero:APOZero",
        "apo_down": "apo_down:APODown",
        "nca": "nca:NCA",
        "sppo": "sppo:SPPO",
        "aot": "aot:AOT",
        "sft": "sft:SFT",
        "reward_model": "reward_model:RewardModel",
        "reward_regression": "reward_regression:RewardRegression",
        "process_reward_model": "process_reward_model:ProcessRewardModel",
    }
)


def register(key: str, algorithm: type[Algorithm]) -> None:
    """Register your own algorithm in this process, for configs, `explain` and `evaluate`.

    To register it for all processes, publish it as an entry point of the group `posttrain.algorithms`.
    """
    ALGORITHMS[key] = algorithm


_CLASSES = {
    "Algorithm": "algorithm",
    "Card": "declared",
    "PolicyGradient": "base",
    **{name: module for module, _, name in (place.partition(":") for place in ALGORITHMS.places.values())},
}


def __getattr__(name: str) -> Any:
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_CLASSES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_CLASSES})
