"""`check_reward` makes an assertion of the audit."""

from __future__ import annotations

import pytest

from posttrain.errors import ConfigError
from posttrain.tasks import find_task
from posttrain.testing import ChecksFailed, check_reward

ROWS = find_task("arithmetic").rows(50)


def gullible(completion: str, answer: str) -> float:
    return float(answer in completion)


def shouted(completion: str) -> str:
    return completion.upper()


@pytest.mark.slow
def test_a_reward_that_keeps_its_contract_passes_and_one_that_breaks_it_fails():
    assert check_reward(gullible, ROWS, only=["contract"]) == ("contract",)
    with pytest.raises(ChecksFailed, match=r"shouted fails 1 of 1 checks\n- contract: ") as told:
        check_reward(shouted, ROWS, only=["contract"], kind="format")
    assert "limit:" in told.value.failed["contract"]


@pytest.mark.slow
def test_a_reward_that_is_gamed_fails_with_an_example_and_a_check_can_be_left_out():
    with pytest.raises(ChecksFailed, match=r"(?s)gullible fails 1 of 2 checks\n- false_accepts: .*gold") as told:
        check_reward(gullible, ROWS, only=["false_accepts", "contract"])
    assert list(told.value.failed) == ["false_accepts"]
    passed = check_reward(gullible, ROWS, only=["false_accepts", "contract"], skip=["false_accepts"])
    assert passed == ("contract",)


def test_a_check_that_there_is_not_is_refused():
    with pytest.raises(ConfigError, match="skip = 'noises'; allowed: "):
        check_reward("numeric", ROWS, skip=["noises"])
