"""The arithmetic of a step, each number worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.lab.plan.layout import Step
from posttrain.models.microbatches import plan_units
from posttrain.models.packing import LEAST_SAVING, Family

GROUPS = Step(prompts=32, per_prompt=8, rows_are="answers", prompt_tokens=128, answer_tokens=256)


def test_rows_updates_and_tokens_are_products_of_the_settings():
    step = Step(
        prompts=32, per_prompt=8, rows_are="answers", prompt_tokens=128, answer_tokens=256, minibatches=4, epochs=2
    )
    assert (step.rows, step.updates, step.tokens) == (256, 8, 256 * 384)


def test_a_group_computes_its_prompt_once_per_micro_batch():
    """(2048 - 128) // 256 = 7 of the 8 answers fit next to their prompt, so two micro-batches hold the prompt."""
    assert GROUPS.rows_together == 7
    in_thirds = Step(**{**vars(GROUPS), "minibatches": 3, "microbatch_tokens": 4096})
    assert in_thirds.rows_together == 3, "8 answers in 3 updates: 3, 3 and 2"
    assert in_thirds.computed_tokens == 32 * 3 * 128 + 256 * 256
    assert GROUPS.computed_tokens == 32 * 2 * 128 + 256 * 256
    assert Step(**{**vars(GROUPS), "microbatch_tokens": 4096}).computed_tokens == 32 * 128 + 256 * 256
    assert Step(**{**vars(GROUPS), "shares_prompts": False}).computed_tokens == GROUPS.tokens


def test_what_a_token_attends_to_is_itself_and_what_stands_before_it():
    """Prompt tokens attend to 1 + 2 tokens, and answer tokens to 3 + 4 + 5: 15 over 5 tokens."""
    step = Step(prompts=1, per_prompt=1, rows_are="examples", prompt_tokens=2, answer_tokens=3)
    assert step.context == 15 / 5


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (
            GROUPS,
            "32 prompts x 8 completions = 256 answers, one update of all of them; at most 98,304 tokens (128 + 256 "
            "each) in 64 micro-batches of up to 2,048 tokens.",
        ),
        (
            Step(prompts=16, per_prompt=2, rows_are="pairs", prompt_tokens=100, answer_tokens=200, minibatches=4),
            "16 pairs x 2 answers = 32 rows, 4 updates of 4 pairs each; at most 9,600 tokens (100 + 200 each) in 4 "
            "micro-batches of up to 2,048 tokens.",
        ),
        (
            Step(prompts=8, per_prompt=1, rows_are="examples", prompt_tokens=0, answer_tokens=256),
            "8 examples, one update of all of them; at most 2,048 tokens (0 + 256 each) in 1 micro-batch of up to "
            "2,048 tokens.",
        ),
        (
            Step(
                prompts=10, per_prompt=1, rows_are="answers", prompt_tokens=6, answer_tokens=4, minibatches=3, epochs=2
            ),
            "10 prompts, one answer each, 6 updates of about 4 answers each (3 parts x 2 epochs); at most 100 tokens "
            "(6 + 4 each) in 3 micro-batches of up to 2,048 tokens.",
        ),
    ],
)
def test_one_sentence_says_it_all(step, sentence):
    assert step.sentence() == sentence


def test_the_tokens_of_a_run_are_those_of_its_steps():
    assert GROUPS.sentence(200).endswith("of up to 2,048 tokens, 19,660,800 in 200 steps.")


@settings(deadline=None)
@given(
    prompts=st.integers(1, 12),
    per_prompt=st.integers(1, 9),
    prompt_tokens=st.integers(LEAST_SAVING + 1, 300),
    answer_tokens=st.integers(2, 300),
    budget=st.integers(100, 4096),
)
def test_there_are_as_many_micro_batches_as_training_makes_of_such_rows(
    prompts, per_prompt, prompt_tokens, answer_tokens, budget
):
    step = Step(
        prompts=prompts,
        per_prompt=per_prompt,
        rows_are="answers",
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        microbatch_tokens=budget,
    )
    shared = prompt_tokens if per_prompt > 1 else 0
    families = [Family(tuple(range(n * per_prompt, (n + 1) * per_prompt)), shared) for n in range(prompts)]
    needed = [prompt_tokens + answer_tokens - 1] * step.rows
    made = plan_units([[row] for row in range(step.rows)], families, needed, budget)
    assert step.microbatches == len(made)
    assert step.scored_tokens <= step.computed_tokens <= step.tokens


@settings(max_examples=40, deadline=None)
@given(
    st.builds(
        Step,
        prompts=st.integers(1, 64),
        per_prompt=st.integers(1, 16),
        rows_are=st.just("answers"),
        prompt_tokens=st.integers(0, 3000),
        answer_tokens=st.integers(1, 3000),
        minibatches=st.integers(1, 4),
        microbatch_tokens=st.integers(1, 8192),
    )
)
def test_counts_stay_within_their_bounds(step):
    assert step.scored_tokens <= step.computed_tokens <= step.tokens
    assert step.minibatches <= step.microbatches
    assert 1 <= step.context <= step.row_tokens
