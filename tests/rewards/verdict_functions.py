"""Reward functions of test_verdict.py, in a separate file: the processes that call them import nothing else."""

import time

from posttrain.verify.verdict import Verdict


def mixed(completion, **row):
    """A hand-made composition, with a verifier that fails now and then."""
    verdict = Verdict(None, "timeout", detail="late") if completion == "late" else Verdict(1.0, "correct")
    return 0.9 * verdict + 0.1


def taken_for_a_truth(completion, **row):
    return 1.0 if Verdict(None, "timeout") else 0.0


def each(completion, **row):
    """One return value of every kind, chosen by the completion's text."""
    return {
        "right": Verdict(1.0, "correct", extracted="18"),
        "wrong": Verdict(0.0, "wrong", extracted="17"),
        "late": Verdict(None, "timeout", detail="no result after 2 s"),
        "broken": Verdict(None, "error", detail="the container is gone"),
        "beside": Verdict(None, "not_applicable"),
        "plain": 0.5,
    }[completion]


def together(completions, **columns):
    return [each(text) for text in completions]


def hangs(completion, **row):
    if completion == "hang":
        while True:
            pass
    if completion == "raise":
        raise ValueError("not today")
    return 1.0


def all_fail(completions):
    time.sleep(0.2)
    raise ValueError("not today")
