"""Signatures of reward functions, and the results of their calls."""

import asyncio
import math
import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from tests.rewards.rollouts import IN_TIME

from posttrain.errors import ConfigError
from posttrain.rewards.calls import Signature, judged, run_calls


def outcomes_of(function, *calls, timeout=5.0):
    found = {}
    with asyncio.Runner() as runner:
        run_calls(
            function,
            list(enumerate(calls)),
            {},
            is_async=Signature.of(function, "f").is_async,
            timeout=timeout,
            emit=found.__setitem__,
            runner=runner,
        )
    return [found[number] for number in range(len(calls))]


def test_parameter_names_tell_the_two_forms_apart():
    def batch(completions, answer, scale=1.0, **columns): ...
    async def sample(prompt, completion, *, answer): ...

    assert Signature.of(batch, "batch") == Signature(
        batch=True, is_async=False, required=("completions", "answer"), optional=("scale",), takes_any=True
    )
    assert Signature.of(sample, "sample") == Signature(
        batch=False, is_async=True, required=("prompt", "completion", "answer"), optional=(), takes_any=False
    )


@pytest.mark.parametrize(
    "function",
    [lambda text: 0.0, lambda prompts, completion: 0.0, lambda **row: 0.0, lambda completions, /: [0.0]],
    ids=["other names", "both forms", "only kwargs", "positional only"],
)
def test_any_other_signature_is_refused(function):
    given = re.escape(f"f{Signature.of.__globals__['inspect'].signature(function)}")
    with pytest.raises(ConfigError, match=f"{given} matches neither form of a reward function; allowed: f\\(prompts"):
        Signature.of(function, "f")


@pytest.mark.parametrize(
    "value",
    [1, 1.0, True, Fraction(1), np.float32(1), np.array(1.0), torch.tensor(1.0)],
    ids=lambda v: type(v).__name__,
)
def test_every_kind_of_number_is_a_reward(value):
    assert judged(value, 0.0).value == 1.0


def test_lists_arrays_and_none_are_rewards_of_a_batch():
    assert judged([1, None, np.float64(0.5), torch.tensor(2.0)], 0.0).value == [1.0, None, 0.5, 2.0]
    assert judged(torch.tensor([1.0, 2.0]), 0.0).value == [1.0, 2.0]
    assert judged(10**400, 0.0).value == math.inf
    masked = np.ma.array([1.0, 2.0], mask=True).mean()
    assert judged([masked, 1.0], 0.0).value == [None, 1.0], "a masked number is none, whatever fills its place"
    assert judged(masked, 0.0).value is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("1.0", "'1.0' of type str"),
        ({"score": 1}, "of type dict"),
        ([1.0, "x"], "'x' of type str"),
        (2j, "of type complex"),
    ],
)
def test_what_is_no_number_is_invalid_and_named(value, message):
    outcome = judged(value, 0.0)
    assert outcome.kind == "invalid"
    assert message in outcome.message


def test_a_failing_call_leaves_the_others_alone():
    def half(completion):
        return 1 / (completion - 1)

    first, second, third = outcomes_of(half, {"completion": 0}, {"completion": 1}, {"completion": 3})
    assert (first.value, third.value) == (-1.0, 0.5)
    assert (second.kind, second.message) == ("exception", "ZeroDivisionError: division by zero")
    assert "return 1 / (completion - 1)" in second.traceback
    assert "run_call" not in second.traceback


def test_leaving_the_interpreter_is_an_exception_of_that_call():
    assert outcomes_of(lambda completion: exit(3), {"completion": ""})[0].message == "SystemExit: 3"


def test_calls_of_an_async_function_wait_together_and_time_out_alone():
    async def wait(completion):
        await asyncio.sleep(completion)
        return completion

    *quick, slow = outcomes_of(wait, *[{"completion": 0.05}] * 20, {"completion": 60}, timeout=IN_TIME)
    assert [outcome.value for outcome in quick] == [0.05] * 20
    assert (slow.kind, slow.message) == ("timeout", f"no result after {IN_TIME:g} s")
