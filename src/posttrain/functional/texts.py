"""Statistics of token sequences, and of their relation to rewards. They need no model.

P prompts, G completions each. Inputs are lists, because groups may differ in size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence


def distinct_ngrams(ids: Sequence[Hashable], n: int) -> float:
    """Number of distinct n-grams / number of all n-grams; 1 for a sequence that is too short for one.

    >>> distinct_ngrams([1, 2, 1, 2, 1, 2], 4)      # 1212, 2121, 1212
    0.6666666666666666
    """
    total = len(ids) - n + 1
    if total < 1:
        return 1.0
    return len({tuple(ids[start : start + n]) for start in range(total)}) / total


def ranks(values: Sequence[float]) -> list[float]:
    """Return ranks from 1; equal values get the mean of their ranks.

    >>> ranks([5.0, 1.0, 5.0])
    [2.5, 1.0, 2.5]
    """
    order = sorted(range(len(values)), key=values.__getitem__)
    found = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in order[start : end + 1]:
            found[place] = (start + end) / 2 + 1
        start = end + 1
    return found


def spearman_within(groups: Sequence[Sequence[tuple[float, float]]]) -> float:
    """Rank correlation of pairs (x, y) within groups: ranks are centred in their group, then all groups are pooled.

    A group in which x or y does not vary contributes nothing. The result is nan if no group contributes.

    >>> spearman_within([[(0.0, 10.0), (1.0, 20.0)], [(1.0, 5.0), (0.0, 7.0)], [(1.0, 5.0), (1.0, 9.0)]])
    0.0
    """
    xy = xx = yy = 0.0
    for group in groups:
        x, y = (ranks(values) for values in zip(*group, strict=True)) if group else ([], [])
        if len(set(x)) < 2 or len(set(y)) < 2:
            continue
        middle = (len(group) + 1) / 2
        xy += math.fsum((a - middle) * (b - middle) for a, b in zip(x, y, strict=True))
        xx += math.fsum((a - middle) ** 2 for a in x)
        yy += math.fsum((b - middle) ** 2 for b in y)
    return xy / math.sqrt(xx * yy) if xx > 0 and yy > 0 else math.nan


def shared_share(keys: Sequence[tuple[Hashable, Hashable]]) -> float:
    """Share of the pairs (source, text) that have the most common text. Only texts from at least two sources count as
    common. 0 if there is none.

    >>> shared_share([("p", "a"), ("p", "a"), ("q", "a"), ("q", "b")])
    0.75
    >>> shared_share([("p", "a"), ("p", "a")])
    0.0
    """
    sources: dict[Hashable, set[Hashable]] = {}
    for source, text in keys:
        sources.setdefault(text, set()).add(source)
    counts = Counter(text for _, text in keys if len(sources[text]) > 1)
    return max(counts.values(), default=0) / max(1, len(keys))
