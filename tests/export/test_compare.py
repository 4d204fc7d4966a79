"""The rule by which an export passes: worked cases, without a model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from posttrain.errors import ExportError
from posttrain.export.compare import TOLERANCES, compare
from posttrain.export.probes import Expected, Probe

PROBE = Probe(name="prompt 1 (a.jsonl:3)", ids=(4, 5), text="ab", tokens=(4, 5), template_kwargs={})
TRAINED = Expected(probe=PROBE, ids=(7, 8, 2), logprobs=(-0.1, -0.7, -0.01), gaps=(3.0, 0.02, 5.0))
"""At its second token the trained model is nearly undecided: 8 leads by 0.02 nats. Token 2 is EOS."""


def answer(generated=(7, 8, 2), logprobs=(-0.1, -0.7, -0.01), **changes):
    return {
        "generated": list(generated),
        "logprobs": list(logprobs),
        "tokens": [4, 5],
        "rendered": None,
        "decoded": "ab",
    } | changes


def judged(given, expected=TRAINED, *, dtype="bfloat16", found=None, stop_strings=()):
    reply = {"answers": [given], "digests": found or {"w": "same"}, "stop_strings": list(stop_strings)}
    return compare([expected], reply, {"w": "same"}, dtype=dtype, source="test")


def test_equal_answers_pass_and_are_counted():
    found = judged(answer())
    assert (found.prompts, found.tokens, found.identical, found.ties, found.weights) == (1, 3, 1, (), 1)
    assert found.largest_difference == 0


def test_stop_strings_that_were_not_to_be_written_are_found():
    with pytest.raises(ExportError, match=r"has stop_strings = \['END'\], the trained one \[\]"):
        judged(answer(), stop_strings=["END"])


def test_a_turned_token_within_the_tolerance_is_a_tie_that_is_reported_and_what_follows_it_does_not_count():
    found = judged(answer(generated=(7, 9, 30, 31), logprobs=(-0.1, -0.71, -0.01)))
    (tie,) = found.ties
    assert (tie.token, tie.trained, tie.exported, tie.gap) == (1, 8, 9, 0.02)
    assert found.identical == 0
    assert str(tie) == "prompt 1 (a.jsonl:3), token 1: 9 for 8, a lead of 0.02 nats"


def test_the_same_turned_token_is_a_mismatch_where_rounding_cannot_explain_it():
    turned = answer(generated=(7, 9, 30))
    with pytest.raises(
        ExportError, match=r"prompt 1 \(a.jsonl:3\), token 1 of its answer: .* says token 9, .* token 8"
    ):
        judged(turned, dtype="float32")
    with pytest.raises(ExportError, match="token 0 of its answer"):
        judged(answer(generated=(6, 8, 2)))


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_a_log_probability_may_differ_by_the_tolerance_and_no_more(dtype):
    limit = TOLERANCES[dtype]
    within = judged(answer(logprobs=(-0.1, -0.7 - 0.99 * limit, -0.01)), dtype=dtype)
    assert within.largest_difference == pytest.approx(0.99 * limit)
    with pytest.raises(ExportError, match=r"token 1 of its answer \(id 8\) has log-probability"):
        judged(answer(logprobs=(-0.1, -0.7 - 1.01 * limit, -0.01)), dtype=dtype)


def test_a_number_that_is_none_is_a_mismatch():
    with pytest.raises(ExportError, match="has log-probability nan"):
        judged(answer(logprobs=(-0.1, float("nan"), -0.01)))


def test_an_answer_that_ends_early_or_goes_on_is_no_tie():
    with pytest.raises(ExportError, match="token 2 of its answer: the exported model says nothing"):
        judged(answer(generated=(7, 8)))
    with pytest.raises(ExportError, match=r"token 3 of its answer: the exported model says token 9, .* nothing"):
        judged(answer(generated=(7, 8, 2, 9)))


def test_scores_are_compared_as_log_probabilities_are():
    row = replace(TRAINED, ids=(), logprobs=(), gaps=(), score=1.5)
    given = {"score": 1.5004, "tokens": [4, 5], "rendered": None, "decoded": "ab"}
    assert judged(given, row, dtype="float32").largest_difference == pytest.approx(4e-4)
    with pytest.raises(ExportError, match=r"is scored 1.6 by the exported model and 1.5 in the trained one"):
        judged(given | {"score": 1.6}, row, dtype="float32")


def test_one_weight_that_differs_is_an_error_and_named():
    with pytest.raises(ExportError, match="holds other values than the trained model for w"):
        judged(answer(), found={"w": "other"})
    with pytest.raises(ExportError, match="for v"):
        judged(answer(), found={"w": "same", "v": "new"})


def test_a_tokenizer_that_reads_otherwise_is_an_error():
    with pytest.raises(ExportError, match=r"tokenizer reads as other ids: \[9\] for \[4, 5\]"):
        judged(answer(tokens=[9]))
    chat = replace(TRAINED, probe=replace(PROBE, messages=({"role": "user", "content": "ab"},)))
    with pytest.raises(ExportError, match="renders by its chat template otherwise"):
        judged(answer(rendered="ba"), chat)
    assert judged(answer(rendered="ab"), chat).identical == 1
