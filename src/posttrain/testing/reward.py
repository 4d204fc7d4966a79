"""`check_reward`: runs the audit of a reward as an assertion."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from posttrain.errors import ConfigError
from posttrain.rewards.audit.api import audit
from posttrain.rewards.audit.checks import CHECKS
from posttrain.rewards.components import RewardLike
from posttrain.testing.checks import ChecksFailed


def check_reward(
    reward: RewardLike | str | Callable[..., Any],
    rows: str | Sequence[Mapping[str, Any]],
    *,
    skip: Collection[str] = (),
    **options: Any,
) -> tuple[str, ...]:
    """Attack a reward as `posttrain reward audit` does, and return the names of the checks that it passed.

        def test_my_reward():
            check_reward("my_rewards.py:grade", "task:arithmetic")

    `rows` has at least 50 rows, or names their source. `options` go to `posttrain.rewards.audit`. `skip` names checks
    that do not apply; state the reason in your test. Raises `ChecksFailed`, an AssertionError, with every failed check
    and examples to try by hand. Warnings do not count as failures. It takes a few seconds.
    """
    names = [check.name for check in CHECKS]
    if unknown := [name for name in skip if name not in names]:
        raise ConfigError(given=f"skip = {unknown[0]!r}", allowed=", ".join(names), fix="Name one of these.")
    only = options.pop("only", None) or names
    report = audit(reward, rows, only=[name for name in only if name not in skip], **options)
    made = [finding for finding in report.checks if finding.status != "skipped"]
    if not made:
        raise ChecksFailed(
            report.reward, {"time": "no check had time to run: pass a larger value of seconds"}, of=len(report.checks)
        )
    failed = {
        finding.check: "\n    ".join([f"{finding.text} (limit: {finding.limit})", *finding.examples])
        for finding in made
        if finding.status == "fail"
    }
    if failed:
        raise ChecksFailed(report.reward, failed, of=len(made))
    return tuple(finding.check for finding in made)
