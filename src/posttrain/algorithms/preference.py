"""The preference losses, by the name that a config uses. A new one is a file, a test and a line here."""

from posttrain.algorithms.aot import AOT
from posttrain.algorithms.apo_down import APODown
from posttrain.algorithms.apo_zero import APOZero
from posttrain.algorithms.base import Algorithm
from posttrain.algorithms.bco import BCO
from posttrain.algorithms.cdpo import CDPO
from posttrain.algorithms.cpo import CPO
from posttrain.algorithms.discopop import DiscoPOP
from posttrain.algorithms.dpo import DPO
from posttrain.algorithms.dpop import DPOP
from posttrain.algorithms.exo import EXO
from posttrain.algorithms.hinge import Hinge
from posttrain.algorithms.ipo import IPO
from posttrain.algorithms.kto import KTO
from posttrain.algorithms.length_normalized_dpo import LengthNormalizedDPO
from posttrain.algorithms.nca import NCA
from posttrain.algorithms.orpo import ORPO
from posttrain.algorithms.robust_dpo import RobustDPO
from posttrain.algorithms.rpo import RPO
from posttrain.algorithms.simpo import SimPO
from posttrain.algorithms.sppo import SPPO

PREFERENCE_ALGORITHMS: dict[str, type[Algorithm]] = {
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
}
