"""What a reward is meant to reward, as far as it can be told from the reward itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from posttrain.rewards.audit.renderings import final_of
from posttrain.rewards.audit.subject import Case, Kind, Subject
from posttrain.rewards.components import Component
from posttrain.rewards.pool import WorkerPool
from posttrain.rewards.verifiers import BUILTINS

if TYPE_CHECKING:
    from posttrain.types import Prompt

DECLARED: dict[str, Kind] = {
    "exact_match": "literal",
    "fuzzy_match": "literal",
    "regex": "format",
    "countdown": "exact",
    **dict.fromkeys(("soft_overlong", "l1_exact", "l1_max", "cosine", "kimi_length", "arora_zanette"), "length"),
}
"""Built-ins of which their columns do not tell it."""
TEST_COLUMNS = frozenset({"tests", "test", "test_list", "test_cases", "input_output", "verification_info"})
ASKED_ROWS = 24


def kind_of(
    component: Component, pool: WorkerPool, prompts: Sequence[Prompt], seconds: float = math.inf
) -> tuple[Kind, str]:
    """The kind, and how it was told; `seconds` is what the whole audit may take."""
    if component.judge is not None or component.model is not None:
        return "judge", "a model scores"
    name = next((name for name, builtin in BUILTINS.items() if builtin is component.builtin), "")
    if name in DECLARED:
        return DECLARED[name], "a built-in"
    named = set(component.signature.named) - component.settings.keys()
    if tests := sorted(named & TEST_COLUMNS & prompts[0].columns.keys()):
        return "code", f"it takes the column {tests[0]!r}"
    if "answer" in named:
        return "exact", "it takes the gold answer"
    if component.signature.takes_any and _reads_gold(component, pool, prompts, seconds):
        return "exact", "its scores depend on the gold answer"
    return "format", "it does not take the gold answer"


def _reads_gold(component: Component, pool: WorkerPool, prompts: Sequence[Prompt], seconds: float) -> bool:
    """Whether any score changes with the gold answer: asked of rewards that take every column."""
    if not any("answer" in prompt.columns for prompt in prompts):
        return False
    golds = [final_of(prompt.columns.get("answer")) for prompt in prompts]
    subject = Subject(component=component, pool=pool, prompts=prompts, golds=golds, seconds=seconds)
    own = [Case(row=row, text=subject.right(row, "boxed")) for row in range(min(len(prompts), ASKED_ROWS))]
    other = [Case(row=case.row, text=case.text, columns={"answer": "a gold that nobody states"}) for case in own]
    return [answer.value for answer in subject.score(own)] != [answer.value for answer in subject.score(other)]
