"""What the answers of a round of sampled pairs depend on, besides their prompts: one digest for each kind of cause.

If a run stopped while it made its pairs, its settings may have changed before it continues. Answers that were sampled
otherwise are then sampled anew, and answers that were scored otherwise are scored anew (experience/sampled_pairs.py).
The digest of a reward covers its settings and the file of its function, but neither what that file imports nor the
weights of a reward model. The digest of sampling does not cover the code of an environment, a tool or an agent.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from posttrain.config.text import redact
from posttrain.models.identity import start_key
from posttrain.train.same_rewards import file_digest

if TYPE_CHECKING:
    from torch import nn

    from posttrain.config import RunConfig

CHANGES_NO_ANSWER = {"max_batch_rows", "timeout", "attempts"}
"""Settings that leave the answers as they are, or only decide how long to wait for them."""


CHANGES_NO_VERDICT = {
    *("timeout", "deadline", "retries", "concurrency", "cache", "max_calls", "max_total_tokens", "api_key_env")
}
"""Settings of a judge that limit its costs, or how long to wait for it."""


def made_of(config: RunConfig, model: nn.Module) -> dict[str, str]:
    """Return the digests of the model that answers, of how it samples, and of what scores the answers."""
    return {
        "model": start_key(model)[:32],
        "sampling": _digest(_sampling(config)),
        "rewards": _digest(_rewards(config)),
    }


def _sampling(config: RunConfig) -> list[Any]:
    parts = [config.sampling, *([config.environment, config.agent] if config.has_turns else [])]
    given = [part.model_dump(mode="json", exclude_defaults=True, exclude=CHANGES_NO_ANSWER) for part in parts]
    return [config.seed, config.tools, redact(given)]


def _rewards(config: RunConfig) -> list[Any]:
    left_out = {"timeout": True, "judge": CHANGES_NO_VERDICT}
    given = (one.model_dump(mode="json", exclude_defaults=True, exclude=left_out) for one in config.rewards)
    return [[redact(entry), file_digest(one)] for entry, one in zip(given, config.rewards, strict=True)]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]
