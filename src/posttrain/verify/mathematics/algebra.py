"""The verifiers that need algebra, as a reward worker imports them: sympy is loaded before any clock starts."""

from posttrain.verify.mathematics import symbolic
from posttrain.verify.mathematics.presets import math, math500, math_lenient

__all__ = ["math", "math500", "math_lenient", "symbolic"]
