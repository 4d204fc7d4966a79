"""Too many dropped rows: the message, and the remedy for each fault."""

import pytest

from posttrain.data.dropped import Dropped, refuse_too_many
from posttrain.errors import DataError


def refusal(reason: str, max_dropped: float = 0.0, total: int = 2) -> str:
    with pytest.raises(DataError) as error:
        refuse_too_many([Dropped("a.jsonl:1", reason)], total, max_dropped, "training data")
    return str(error.value)


def test_a_prompt_that_is_too_long_leaves_no_room_for_what_is_sampled():
    assert "lower sampling.max_completion_length" in refusal("prompt longer than 56 tokens")


def test_a_given_answer_that_is_too_long_has_nothing_to_do_with_sampling():
    said = refusal("longer than 512 tokens")
    assert "sampling" not in said
    assert "raise data.max_length if it is set, or use a model with a longer context; or raise data.max_d" in said


def test_other_faults_are_mended_in_the_rows():
    assert "Fix the rows named above; or raise" in refusal("empty prompt")


def test_a_share_that_allows_everything_is_not_named():
    said = refusal("empty prompt", max_dropped=1.0, total=1)
    assert "allowed: at least one left" in said
    assert "%" not in said
