"""The examiner of an engine's mismatch takes no more memory than training does, and never ends a run."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from tests.tiny import tiny_model

from posttrain.config import RunConfig
from posttrain.experience.deliveries import TrainerScores
from posttrain.experience.group import Group
from posttrain.models.policy import load_policy, policy_forward
from posttrain.train import mismatch
from posttrain.train.mismatch import PLACES, Examiner
from posttrain.types import Completion, Prompt
from posttrain.watch.bisection import Row
from posttrain.watch.rounding import LEVELS

LEVEL = LEVELS[torch.float32]
ROWS, PROMPT, LENGTH = 12, 4, 40
VERSION = 3


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """A model, and its forward pass as training runs it."""
    config = RunConfig.model_validate(
        {
            "model": {"path": str(tiny_model(tmp_path_factory.mktemp("tiny"))), "device": "cpu"},
            "algorithm": "grpo",
            "data": {"train": "p.jsonl"},
            "rewards": ["repetition"],
            "train": {"steps": 1},
        }
    )
    loaded = load_policy(config)
    with torch.no_grad():
        loaded.model.get_parameter("lm_head.weight").mul_(6)  # sharper, so that its distributions differ clearly
    return loaded, policy_forward(config, loaded, config.algorithm.build())


@pytest.fixture
def groups(policy):
    """Groups with the log-probabilities that an engine at temperature 0.8 would report."""
    loaded, forward = policy
    dice = torch.Generator().manual_seed(0)
    rows = [tuple(torch.randint(3, 39, (PROMPT + LENGTH,), generator=dice).tolist()) for _ in range(ROWS)]
    prompts, ids = [row[:PROMPT] for row in rows], [row[PROMPT:] for row in rows]
    colder = TrainerScores(forward.under(loaded.model, temperature=0.8), loaded.pad_id)
    with torch.no_grad():
        says = colder(prompts, ids, temperature=0.8)
    return [
        Group(
            prompt=Prompt(index=number, ids=prompt, text=""),
            completions=(
                Completion(
                    ids=drawn,
                    logprobs=tuple(said),
                    versions=(VERSION,) * LENGTH,
                    finish_reason="length",
                    text="",
                ),
            ),
        )
        for number, (prompt, drawn, said) in enumerate(zip(prompts, ids, says, strict=True))
    ]


def examiner(policy, tokens=4096, **more):
    loaded, forward = policy
    return Examiner(loaded, forward, TrainerScores(forward.under(loaded.model), loaded.pad_id), tokens, **more)


def published(policy, *numbers):
    tensors = {name: one.detach().clone() * 1.01 for name, one in policy[0].model.named_parameters()}
    return lambda version: {number: tensors.items() for number in numbers}


def ends_memory(*_, **__):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize("tokens", [100, 1])
def test_no_pass_has_more_tokens_than_a_micro_batch_and_the_head_sees_the_asked_places_alone(policy, groups, tokens):
    model, seen, asked = policy[0].model, [], []
    hooks = [
        model.model.embed_tokens.register_forward_hook(lambda module, inputs, _: seen.append(inputs[0].numel())),
        model.lm_head.register_forward_hook(lambda module, inputs, _: asked.append(inputs[0].shape[-2])),
    ]
    try:
        cause = examiner(policy, tokens)(groups, VERSION, LEVEL)
    finally:
        for hook in hooks:
            hook.remove()
    assert cause.kind == "temperature", cause
    assert max(seen) <= max(tokens, PROMPT + LENGTH + 1), "a longer row goes alone; a reading adds a token"
    assert asked
    assert max(asked) <= PLACES


def test_the_places_that_are_kept_have_the_numbers_of_all(policy, groups):
    model = policy[0].model
    one = groups[0].completions[0]
    row = Row(prompt_ids=groups[0].prompt.ids, ids=one.ids, logprobs=one.logprobs, places=(0, 7, LENGTH - 1))
    with torch.no_grad():
        found_NV = mismatch.whole_logprobs(model, [row])
        whole_TV = model(input_ids=torch.tensor([(*row.prompt_ids, *row.ids)])).logits[0].log_softmax(dim=-1)
    torch.testing.assert_close(found_NV, whole_TV[[PROMPT - 1, PROMPT + 6, PROMPT + LENGTH - 2]])


def test_no_two_copies_of_the_model_are_there_at_once(policy, groups, monkeypatch):
    made, there, copied = [], [], mismatch.plain_copy

    def copy(*arguments):
        gc.collect()
        there.append(sum(one() is not None for one in made))
        found = copied(*arguments)
        made.append(weakref.ref(found))
        return found

    monkeypatch.setattr(mismatch, "plain_copy", copy)
    assert examiner(policy, published=published(policy, 1, 2))(groups, VERSION, LEVEL).kind == "temperature"
    assert there == [0, 0, 0], "two versions, and a copy in another precision"


@pytest.mark.slow
def test_without_memory_for_a_copy_the_trainer_alone_is_asked_and_engines_once(policy, groups, monkeypatch):
    made, left, asked, copied = [], [], [], mismatch.plain_copy

    def copy(model, dtype):
        if dtype == torch.bfloat16:
            ends_memory()
        found = copied(model, dtype)
        made.append(weakref.ref(found))
        return found

    monkeypatch.setattr(mismatch, "plain_copy", copy)
    monkeypatch.setattr(
        mismatch, "free_memory", lambda: (gc.collect(), left.append(sum(one() is not None for one in made)))
    )
    ask = lambda tokens: asked.append(tokens) or ()  # noqa: E731
    cause = examiner(policy, engines=ask, published=published(policy, 1))(groups, VERSION, LEVEL)
    assert (cause.kind, cause.evidence["rounding"]) == ("temperature", None)
    assert (len(made), left, len(asked)) == (1, [0], 1), "the second attempt holds nothing of the first"


def test_what_no_law_explains_is_told_without_what_there_was_no_memory_for(policy, groups, monkeypatch):
    monkeypatch.setattr(mismatch, "plain_copy", ends_memory)
    [one] = groups[0].completions
    odd = Completion(**vars(one) | {"logprobs": tuple(-5.0 * (n % 3) for n in range(LENGTH))})
    cause = examiner(policy)([Group(prompt=groups[0].prompt, completions=(odd,))], VERSION, LEVEL)
    assert cause.kind == "unknown"
    assert "no memory to ask for rounding and earlier weights" in cause.text


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory"),
            "there was not enough memory for the request (CUDA out of memory)",
        ),
        pytest.param(
            RuntimeError("DefaultCPUAllocator: can't allocate memory"),
            "there was not enough memory for the request",
            marks=pytest.mark.slow,
        ),
        (ValueError("no such layer"), "the request failed: ValueError: no such layer"),
    ],
)
def test_nothing_that_goes_wrong_ends_a_run(policy, groups, error, words):
    def fails(*_):
        raise error

    hook = policy[0].model.model.layers[0].register_forward_pre_hook(fails)
    try:
        cause = examiner(policy)(groups, VERSION, LEVEL)
    finally:
        hook.remove()
    assert (cause.kind, words in cause.text) == ("unknown", True), cause
    assert examiner(policy)(groups, VERSION, LEVEL).kind == "temperature", "the failure left no trace"


def test_an_interrupt_goes_through(policy, groups):
    def interrupt(tokens):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        examiner(policy, engines=interrupt)(groups, VERSION, LEVEL)
