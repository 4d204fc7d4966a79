"""Rewards for the length n of a completion in tokens, its EOS token included.

    soft_overlong    0, then falling to -1 over the last `buffer` tokens of `max_length` (DAPO, arXiv:2503.14476)
    l1_exact         -alpha |target - n|                      add it to a correctness reward (L1, arXiv:2503.04697)
    l1_max           clip(alpha (target - n) + delta, 0, 1)   gate it with a correctness reward (L1)
    cosine           lo + (hi - lo)(1 + cos(pi n / max_length)) / 2      (arXiv:2502.03373)
    kimi_length      1/2 - (n - shortest)/(longest - shortest) over the group (Kimi k1.5, arXiv:2501.12599)
    arora_zanette    1 - alpha sigmoid((n - mean)/std) over the group's correct completions (arXiv:2502.04463)
    finished         1 when the completion ended before the length limit

`correct` says whether the gate is open: the reward named in `gate` reached its threshold. None if that is unknown.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from posttrain.errors import ConfigError, DataError
from posttrain.verify.verdict import Verdict

Ids = Sequence[int]


def soft_overlong(completion: str, completion_ids: Ids, *, max_length: int, buffer: int) -> Verdict:
    """clip((max_length - buffer - n) / buffer, -1, 0).

    >>> [float(soft_overlong("", range(n), max_length=100, buffer=20)) for n in (80, 81, 95, 100, 150)]
    [0.0, -0.05, -0.75, -1.0, -1.0]
    """
    _need(0 < buffer <= max_length, f"max_length = {max_length}, buffer = {buffer}", "0 < buffer <= max_length")
    n = len(completion_ids)
    penalty = min(0.0, max(-1.0, (max_length - buffer - n) / buffer))
    return Verdict(penalty, "too_long" if penalty < 0 else "within", extracted=_tokens(n))


def l1_exact(completion: str, completion_ids: Ids, target_length: float, *, alpha: float = 0.0003) -> Verdict:
    """-alpha |target_length - n|. Added to a correctness reward of weight 1 it is the reward of L1-Exact.

    >>> 1 + l1_exact("", range(1234), 1000)
    0.9298
    """
    _need(alpha > 0, f"alpha = {alpha}", "more than 0")
    n, target = len(completion_ids), _target(target_length)
    reason = "within" if n == target else "too_long" if n > target else "too_short"
    return Verdict(-alpha * abs(target - n), reason, extracted=_tokens(n))


def l1_max(
    completion: str, completion_ids: Ids, target_length: float, *, alpha: float = 0.0003, delta: float = 0.5
) -> Verdict:
    """clip(alpha (target_length - n) + delta, 0, 1). Gated by a correctness reward it is the reward of L1-Max.

    >>> float(l1_max("", range(1234), 1000))
    0.4298
    """
    _need(alpha > 0, f"alpha = {alpha}", "more than 0")
    n, target = len(completion_ids), _target(target_length)
    value = min(1.0, max(0.0, alpha * (target - n) + delta))
    return Verdict(value, "within" if n <= target else "too_long", extracted=_tokens(n))


def cosine(
    completion: str,
    completion_ids: Ids,
    correct: bool | None,
    *,
    max_length: int,
    correct_short: float = 1.0,
    correct_long: float = 0.5,
    wrong_short: float = -1.0,
    wrong_long: float = -0.5,
) -> Verdict:
    """Rewards short right answers and long wrong ones, so that it pays to continue thinking if the answer is wrong.

    lo + (hi - lo)(1 + cos(pi min(n / max_length, 1))) / 2: hi for n = 0, lo from `max_length` on.

    >>> [float(cosine("", range(n), True, max_length=100)) for n in (0, 50, 130)]
    [1.0, 0.75, 0.5]
    """
    _need(max_length > 0, f"max_length = {max_length}", "more than 0")
    if correct is None:
        return _unknown()
    n = len(completion_ids)
    high, low = (correct_short, correct_long) if correct else (wrong_short, wrong_long)
    value = low + 0.5 * (high - low) * (1 + math.cos(math.pi * min(n / max_length, 1.0)))
    return Verdict(value, _reason(correct), extracted=_tokens(n))


def kimi_length(
    completions: Sequence[str],
    completion_ids: Sequence[Ids],
    groups: Sequence[int],
    correct: Sequence[bool | None],
) -> list[Verdict]:
    """Within each group l = 1/2 - (n - shortest)/(longest - shortest): l for a right answer, min(0, l) for a wrong one.

    l is 0 if all completions of a group are equally long.
    """
    verdicts: list[Verdict] = [_unknown()] * len(completions)
    for places in places_of(groups).values():
        lengths = [len(completion_ids[place]) for place in places]
        shortest, longest = min(lengths), max(lengths)
        for place, n in zip(places, lengths, strict=True):
            if (right := correct[place]) is None:
                continue
            value = 0.5 - (n - shortest) / (longest - shortest) if longest > shortest else 0.0
            verdicts[place] = Verdict(value if right else min(0.0, value), _reason(right), extracted=_tokens(n))
    return verdicts


def arora_zanette(
    completions: Sequence[str],
    completion_ids: Sequence[Ids],
    groups: Sequence[int],
    correct: Sequence[bool | None],
    *,
    alpha: float = 0.1,
) -> list[Verdict]:
    """1 - alpha sigmoid(z) for a right answer, 0 for a wrong one; z = (n - mean)/std over the group's right answers.

    The standard deviation divides by the number of right answers. If it is 0, z is 0. This reward includes the
    correctness: give the correctness reward the weight 0.
    """
    _need(0 <= alpha <= 1, f"alpha = {alpha}", "0 to 1: more would pay less for right answers than for wrong ones")
    verdicts: list[Verdict] = [_unknown()] * len(completions)
    for places in places_of(groups).values():
        right = [len(completion_ids[place]) for place in places if correct[place]]
        mean, std = (statistics.fmean(right), statistics.pstdev(right)) if right else (0.0, 0.0)
        for place in places:
            if (is_right := correct[place]) is None:
                continue
            n = len(completion_ids[place])
            z = (n - mean) / std if std > 0 else 0.0
            value = 1 - alpha / (1 + math.exp(-z)) if is_right else 0.0
            verdicts[place] = Verdict(value, _reason(is_right), extracted=_tokens(n))
    return verdicts


def finished(completion: str, truncated: bool, *, reward: float = 1.0, penalty: float = 0.0) -> Verdict:
    """`reward` for a completion that ended before the length limit, -`penalty` for one that was truncated there.

    With weight 0 and as the `gate` of a correctness reward, truncated completions earn nothing. With reward 0 and a
    penalty it is the penalty for a missing EOS.
    """
    _need(penalty >= 0, f"penalty = {penalty}", "0 or more: it is subtracted")
    return Verdict(-penalty, "truncated") if truncated else Verdict(reward, "finished")


def places_of(groups: Sequence[int]) -> dict[int, list[int]]:
    """The positions of the completions of each group.

    >>> places_of([0, 0, 1])
    {0: [0, 1], 1: [2]}
    """
    found: dict[int, list[int]] = {}
    for place, group in enumerate(groups):
        found.setdefault(group, []).append(place)
    return found


def _need(holds: bool, given: str, allowed: str) -> None:
    if not holds:
        raise ConfigError(given=given, allowed=allowed)


def _target(target_length: float) -> float:
    if isinstance(target_length, bool) or not isinstance(target_length, int | float) or not target_length >= 0:
        raise DataError(
            given=f"target_length is {target_length!r}",
            allowed="a number of tokens",
            fix="Correct the column target_length, or set settings.target_length for all rows.",
        )
    return target_length


def _reason(correct: bool) -> str:
    return "correct" if correct else "wrong"


def _unknown() -> Verdict:
    return Verdict(None, "not_applicable", detail="whether it is correct is not known")


def _tokens(n: int) -> str:
    return f"{n} tokens"
