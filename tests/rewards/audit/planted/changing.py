"""Rewards that give different scores to the same completion."""

import os
import random
import time

from tests.rewards.audit.planted.honest import marked

_calls = 0


def by_order(completions, answer):
    """The first completion of a batch gets a little more."""
    scores = [marked(text, gold) for text, gold in zip(completions, answer, strict=True)]
    return [score + 0.1 * (place == 0) for place, score in enumerate(scores)]


def by_batch(completions, answer):
    """Scores are relative to the mean of the batch."""
    scores = [marked(text, gold) for text, gold in zip(completions, answer, strict=True)]
    return [score - sum(scores) / len(scores) for score in scores]


def by_hash(completion, answer):
    """The order of a set breaks ties."""
    words = list(set(completion.split()) | {"one", "two", "three"})
    return marked(completion, answer) + 0.01 * words.index("one")


def by_clock(completion, answer):
    return marked(completion, answer) + 0.1 * (time.time_ns() // 200_000_000 % 2)


def by_process(completion, answer):
    return marked(completion, answer) + 1e-6 * os.getpid()


def by_count(completion, answer):
    """The score depends on the number of calls."""
    global _calls
    _calls += 1
    return marked(completion, answer) + 0.001 * _calls


def noisy(completion, answer):
    """Noise as large as the signal."""
    return marked(completion, answer) + random.SystemRandom().gauss(0.0, 1.0)
