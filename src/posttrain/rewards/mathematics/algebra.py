"""The verifiers that need algebra, as a reward worker imports them: sympy is loaded before any clock starts."""

from posttrain.rewards.mathematics import symbolic
from posttrain.rewards.mathematics.presets import math, math500, math_lenient

__all__ = ["math", "math500", "math_lenient", "symbolic"]
