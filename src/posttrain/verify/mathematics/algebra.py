"""The verifiers that need algebra. A reward worker imports this file, so that sympy is loaded before a clock starts."""

from posttrain.verify.mathematics import symbolic
from posttrain.verify.mathematics.presets import math, math500, math_lenient

__all__ = ["math", "math500", "math_lenient", "symbolic"]
