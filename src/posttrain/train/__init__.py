"""Training: the step, what it works with, and `posttrain.train(config)`, which this package answers itself.

The package and the function have one name. The package is therefore callable: `posttrain.train(config)` is
`posttrain.pipeline.run.start(config)`, and torch is imported at the call, not before.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from posttrain.importing import uncollected

if TYPE_CHECKING:
    from posttrain.pipeline.run import Pipeline
    from posttrain.train.run import Run


class _Callable(ModuleType):
    def __call__(self, config: Any, *, view: Any = None, **overrides: Any) -> Run | Pipeline:
        with uncollected():
            from posttrain.pipeline.run import start

        return start(config, view=view, **overrides)


sys.modules[__name__].__class__ = _Callable
