"""Audit a reward before a model learns to game it.

    report = audit("my_rewards.py:grade", "gsm8k_train.jsonl")
    print(report.render())
    assert report.ok

`posttrain reward audit` does the same from a terminal.
"""

from posttrain.rewards.audit.api import Options, audit, audit_config
from posttrain.rewards.audit.checks import CHECKS, Check
from posttrain.rewards.audit.finding import AuditReport, Finding

__all__ = ["CHECKS", "AuditReport", "Check", "Finding", "Options", "audit", "audit_config"]
