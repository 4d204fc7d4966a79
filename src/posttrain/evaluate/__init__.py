"""Held-out evaluation: greedy and sampled answers, pass@k, majority vote, intervals, forgetting.

The package is callable: `posttrain.evaluate(model, data, rewards, k=4)` is `posttrain.evaluate.api.evaluate`. The name
belongs to both, and whichever of the two an import meets first, both ways of using it work.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from posttrain.importing import uncollected

if TYPE_CHECKING:
    from posttrain.evaluate.evaluation import Evaluation


class _CallablePackage(ModuleType):
    def __call__(
        self, model: Any, data: Any = None, rewards: Any = None, *, k: int | None = None, **how: Any
    ) -> Evaluation:
        """Answer held-out prompts greedily and `k` times sampled, and judge the answers: posttrain.evaluate.api."""
        with uncollected():
            from posttrain.evaluate.api import evaluate

        return evaluate(model, data, rewards, k=k, **how)


sys.modules[__name__].__class__ = _CallablePackage
