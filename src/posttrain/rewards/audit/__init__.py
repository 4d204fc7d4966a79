"""Audit a reward before a model learns to game it.

    report = audit("my_rewards.py:grade", "gsm8k_train.jsonl")
    print(report.render())
    assert report.ok

`posttrain reward audit` does the same from a terminal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from posttrain.importing import names_on_first_use

if TYPE_CHECKING:
    from posttrain.rewards.audit.api import Options, audit, audit_config
    from posttrain.rewards.audit.checks import CHECKS, Check
    from posttrain.rewards.audit.finding import AuditReport, Finding

__all__ = ["CHECKS", "AuditReport", "Check", "Finding", "Options", "audit", "audit_config"]

_PLACES = {
    **dict.fromkeys(("Options", "audit", "audit_config"), "api"),
    **dict.fromkeys(("CHECKS", "Check"), "checks"),
    **dict.fromkeys(("AuditReport", "Finding"), "finding"),
}
"""The module of each name. It is imported on first use: a probe process needs none of them."""


__getattr__, __dir__ = names_on_first_use(__name__, {name: f"{__name__}.{place}" for name, place in _PLACES.items()})
