"""Estimates for k answers from n sampled answers to one problem: pass@k, majority vote, best of k.

Everything here describes ONE problem; average over problems afterwards (RULE 51). Counts are exact integers, divided
once at the end, so that no factorial is ever a floating-point number.

    pass@k     1 - C(n - c, k) / C(n, k)                      at least one of k answers is correct   (arXiv:2107.03374)
    pass^k     C(c, k) / C(n, k)                              all k answers are correct              (arXiv:2406.12045)
    differ@k   1 - sum_v C(n_v, k) / C(n, k)                  k answers do not all have the same score v
    best@k     sum_i C(i - 1, k - 1) / C(n, k) * s_(i)        expected highest of k scores, s ascending
    majority@k expected correctness of the most frequent answer of a random subset of k
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from fractions import Fraction
from math import comb
from typing import Literal, get_args

from posttrain.functional.choices import require_choice

Ties = Literal["fractional", "first"]

_MAX_SUBSETS = 20_000
"""Largest number of subsets that `ties="first"` visits. If there are more, it draws this many of them."""


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that at least one of k answers, drawn without replacement from n with c correct, is correct.

    Unbiased for the pass rate of k fresh samples, unlike `1 - (1 - c/n)**k`, which is too low.

    >>> pass_at_k(8, 3, 1), round(pass_at_k(8, 3, 4), 10)
    (0.375, 0.9285714286)
    """
    _check_counts(n, c, k)
    return (comb(n, k) - comb(n - c, k)) / comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Probability that all of k answers, drawn without replacement from n with c correct, are correct.

    >>> round(pass_hat_k(8, 3, 2), 10)
    0.1071428571
    """
    _check_counts(n, c, k)
    return comb(c, k) / comb(n, k)


def differ_at_k(scores: Sequence[Hashable], k: int) -> float:
    """Probability that k answers, drawn without replacement from the n scores, do not all have the same score.

    An algorithm that compares the answers to one prompt learns only from such a group. For scores of 0 and 1 this is
    pass@k - pass^k. Unbiased for k fresh samples.

    >>> differ_at_k([1, 0, 0, 0], 2), differ_at_k([1, 1, 1], 2)
    (0.5, 0.0)
    """
    n = len(scores)
    _check_counts(n, 0, k)
    same = sum(comb(count, k) for count in Counter(scores).values())
    return (comb(n, k) - same) / comb(n, k)


def best_of_k(scores: Sequence[float], k: int) -> float:
    """Expected highest score of a random subset of k out of n scores.

    >>> round(best_of_k([0.1, 0.4, 0.4, 0.7, 0.9], 3), 10)
    0.79
    """
    n = len(scores)
    _check_counts(n, 0, k)
    ways = (comb(i, k - 1) for i in range(n))  # number of subsets whose highest score has index i
    return math.fsum(score * count / comb(n, k) for score, count in zip(sorted(scores), ways, strict=True))


def majority_at_k(
    answers: Sequence[Hashable | None],
    correct: Sequence[bool],
    k: int,
    *,
    ties: Ties = "fractional",
    seed: int = 0,
) -> float:
    """Expected correctness of the most frequent answer among k of the n answers, drawn without replacement.

    `answers` must be normalised: equal objects form one group. `None` is an answer that could not be parsed: it forms
    no group and never wins, but it takes one of the k places. If the members of one group were judged differently, the
    group counts with its share of correct members.

    `ties="fractional"` gives each tied group an equal share and is exact for every n. `ties="first"` gives the whole
    vote to the tied group that occurs first. It visits all subsets if there are at most 20,000. Otherwise it draws
    20,000 of them with `seed`, without replacement inside a subset.

    >>> [round(majority_at_k("AAABBC", [True] * 3 + [False] * 3, k), 10) for k in (1, 3, 5, 6)]
    [0.5, 0.6, 0.75, 1.0]
    """
    n = len(answers)
    if len(correct) != n:
        raise ValueError(f"{n} answers, but {len(correct)} judgements; each answer needs one")
    _check_counts(n, 0, k)
    require_choice("ties", ties, get_args(Ties))
    if ties == "fractional":
        return _count_majorities(answers, correct, k)
    credits = [_first_credit(answers, correct, subset) for subset in _subsets(n, k, seed)]
    return math.fsum(credits) / len(credits)


def vote_totals(answers: Sequence[Hashable | None], weights: Sequence[float]) -> dict[Hashable, float]:
    """Return the sum of the weights of each answer, in order of first occurrence; `None` gets no vote."""
    votes: dict[Hashable, list[float]] = defaultdict(list)
    for answer, weight in zip(answers, weights, strict=True):
        if answer is not None:
            votes[answer].append(weight)
    return {answer: math.fsum(given) for answer, given in votes.items()}


def weighted_vote(answers: Sequence[Hashable | None], weights: Sequence[float]) -> Hashable | None:
    """Return the answer with the largest sum of weights; the first one at a tie, None if no answer could be parsed.

    >>> weighted_vote("AAABBC", [0.2, 0.3, 0.1, 0.9, 0.4, 0.5])
    'B'
    """
    totals = vote_totals(answers, weights)
    return max(totals, key=totals.__getitem__) if totals else None


def best_of_n_kl_bound(n: int) -> float:
    """Upper bound, in nats, of KL(best-of-n policy || the policy that was sampled): log n - (n - 1) / n."""
    if n < 1:
        raise ValueError(f"n = {n}; allowed: an integer of at least 1")
    return math.log(n) - (n - 1) / n


def powers_of_two(n: int) -> list[int]:
    """Return 1, 2, 4 ... up to n: the values of k for which pass@k is reported.

    >>> powers_of_two(6)
    [1, 2, 4]
    """
    return [2**i for i in range(n.bit_length())]


def _check_counts(n: int, c: int, k: int) -> None:
    if not 0 <= c <= n:
        raise ValueError(f"c = {c} correct answers of n = {n}; allowed: 0 <= c <= n")
    if not 1 <= k <= n:
        raise ValueError(f"k = {k} of n = {n} answers; allowed: 1 <= k <= n, because k answers are drawn from the n")


def _count_majorities(answers: Sequence[Hashable | None], correct: Sequence[bool], k: int) -> float:
    """Majority vote with fractional ties: count in exact integers the subsets in which each group wins or ties."""
    sizes = Counter(answer for answer in answers if answer is not None)
    unread = len(answers) - sizes.total()
    shares: dict[int, Fraction] = defaultdict(Fraction)  # groups of one size win equally often
    for answer, size in sizes.items():
        right = sum(bool(ok) for given, ok in zip(answers, correct, strict=True) if given == answer)
        shares[size] += Fraction(right, size)
    total = Fraction(0)
    for size, share in shares.items():
        if share:
            others = list(sizes.values())
            others.remove(size)
            total += share * _winning_weight(size, others, unread, k)
    return float(total / comb(len(answers), k))


def _winning_weight(size: int, others: list[int], unread: int, k: int) -> Fraction:
    """Number of subsets of k in which a group of `size` has the most members, each divided by the number of ties."""
    weight = Fraction(0)
    for votes in range(1, min(size, k) + 1):
        rest = k - votes
        ways = _ways_by_ties(others, votes, rest)
        for tied, by_used in enumerate(ways):
            subsets = sum(count * comb(unread, rest - used) for used, count in enumerate(by_used))
            weight += Fraction(comb(size, votes) * subsets, tied + 1)
    return weight


def _ways_by_ties(others: list[int], votes: int, rest: int) -> list[list[int]]:
    """`[t][u]`: ways to choose u members of the other groups, at most `votes` per group, t groups at `votes`."""
    ways = [[0] * (rest + 1) for _ in range(rest // votes + 1)]
    ways[0][0] = 1
    for size in others:
        grown = [[0] * (rest + 1) for _ in ways]
        for tied, by_used in enumerate(ways):
            for used, count in enumerate(by_used):
                if count:
                    for more in range(min(size, votes, rest - used) + 1):
                        grown[tied + (more == votes)][used + more] += count * comb(size, more)
        ways = grown
    return ways


def _subsets(n: int, k: int, seed: int) -> Iterator[Sequence[int]]:
    """Return all subsets of k of n indices, or a fixed draw if there are too many. Indices ascend."""
    if comb(n, k) <= _MAX_SUBSETS:
        return iter(itertools.combinations(range(n), k))
    generator = random.Random(f"majority {seed} {n} {k}")
    return (sorted(generator.sample(range(n), k)) for _ in range(_MAX_SUBSETS))


def _first_credit(answers: Sequence[Hashable | None], correct: Sequence[bool], subset: Sequence[int]) -> float:
    """Return the correct share of the most frequent answer of one subset; at a tie, of the earliest one."""
    members: dict[Hashable, list[bool]] = {}
    for place in subset:
        if answers[place] is not None:
            members.setdefault(answers[place], []).append(bool(correct[place]))
    if not members:
        return 0.0
    winner = max(members.values(), key=len)  # `max` keeps the first of equals, and dicts keep the order of insertion
    return sum(winner) / len(winner)
