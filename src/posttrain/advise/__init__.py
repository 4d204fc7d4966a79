"""What can be known before a run is paid for: which algorithm, whether it fits, what it costs. Nothing imports torch.

`cards` holds the facts of every algorithm as data, written from the classes; `advisor` chooses one by the rules of
`guides.yaml`; `ranges` points out settings that nobody has published; `plan` counts memory, time and money; `explore`
makes a page of it.

The package is callable: `posttrain.advise(data="verifier", size="7b")` is `posttrain.advise.advisor.advise(...)`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posttrain.advise.advisor import Advice
    from posttrain.advise.facts import Facts


class _Callable(ModuleType):
    def __call__(self, facts: Facts | None = None, **given: Any) -> Advice:
        from posttrain.advise.advisor import advise

        return advise(facts, **given)


sys.modules[__name__].__class__ = _Callable
