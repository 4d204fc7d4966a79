"""The age of tokens when they are trained, and the rule that decides which enter the loss. Pure functions.

    lag_t  = v - u_t                   v: version being trained; u_t: version of the weights that drew token t
    kept_t = lag_t <= S + k - 1        S: max_staleness; k: publish_every

Tokens that were not sampled have version -1 and are never kept. Rewards and advantages use whole completions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NOT_SAMPLED = -1
"""Version of a token of the prompt or of a tool."""


def lags(version: int, token_versions: Sequence[int]) -> list[int]:
    """Ages of sampled tokens in the step that trains `version`."""
    found = [version - u for u in token_versions]
    if any(lag < 0 for lag in found):
        raise ValueError(
            f"version {version} is trained on a token of version {max(token_versions)}, which does not exist yet"
        )
    return found


def kept(version: int, token_versions: Sequence[int], max_staleness: int, publish_every: int = 1) -> list[bool]:
    """For each token, whether it enters the loss of the step that trains `version`."""
    bound = max_staleness + publish_every - 1
    ages = lags(version, token_versions)
    return [u != NOT_SAMPLED and age <= bound for u, age in zip(token_versions, ages, strict=True)]


def token_versions(spans: Iterable[Sequence[int]]) -> list[int]:
    """The version of each token of a row, from spans (version, count)."""
    return [version for version, count in spans for _ in range(count)]


def add_span(spans: list[list[int]], version: int, count: int) -> None:
    """Append `count` tokens of `version` to a row."""
    if not count:
        return
    if spans and spans[-1][0] > version:
        raise ValueError(f"a token of version {version} follows one of version {spans[-1][0]}: versions never decrease")
    if spans and spans[-1][0] == version:
        spans[-1][1] += count
    else:
        spans.append([version, count])
