"""Each cause of a difference between engine and trainer is planted in real numbers of a real model, and named."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from tests.catalogue import few
from tests.tiny import tiny_model
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM

from posttrain.engines.sampling import truncate
from posttrain.train.mismatch import whole_logprobs
from posttrain.watch.bisection import Answered, Row, Trainer, find_cause
from posttrain.watch.rounding import LEVELS

LEVEL = LEVELS[torch.float32]
BOS = 1


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model with sharper distributions than a random one."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model(tmp_path_factory.mktemp("tiny")), dtype=torch.float32)
    with torch.no_grad():
        model.lm_head.weight.mul_(6)
    return model.eval()


@torch.no_grad()
def drawn(model, *, temperature=1.0, reported=None, read=lambda ids: ids, count=12, length=12, **truncation):
    """Rows that a model has drawn, with the log-probabilities that it reports at the temperature `reported`."""
    dice = torch.Generator().manual_seed(0)
    prompts = [tuple(torch.randint(3, 40, (4 + n % 3,), generator=dice).tolist()) for n in range(count)]
    ids, logprobs = ([[] for _ in prompts] for _ in range(2))
    for _ in range(length):
        read_now = [torch.tensor([*read(prompt), *drawn]) for prompt, drawn in zip(prompts, ids, strict=True)]
        last = [len(row) - 1 for row in read_now]
        logits = model(pad_sequence(read_now, batch_first=True)).logits[range(count), last].float()
        kept = truncate(logits / temperature, **({"top_k": 0, "top_p": 1.0, "min_p": 0.0} | truncation))
        tokens = torch.multinomial(kept.softmax(-1), 1, generator=dice)
        said = kept.log_softmax(-1) if reported is None else (logits / reported).log_softmax(-1)
        for n, (token, logprob) in enumerate(zip(tokens.tolist(), said.gather(1, tokens).tolist(), strict=True)):
            ids[n] += token
            logprobs[n] += logprob
    return [
        Row(prompt_ids=prompt, ids=tuple(drawn), logprobs=tuple(numbers), places=tuple(range(length)))
        for prompt, drawn, numbers in zip(prompts, ids, logprobs, strict=True)
    ]


def trainer(model, *, temperature=1.0, earlier=()):
    rounded = copy.deepcopy(model).bfloat16()

    def score(one):
        return torch.no_grad()(lambda rows: whole_logprobs(one, rows))

    return Trainer(
        present=score(model),
        rounded=score(rounded),
        earlier={version: score(one) for version, one in enumerate(earlier)},
        readings={
            "with <bos> in front": lambda ids: (BOS, *ids),
            "without their first token": lambda ids: ids[1:],
        },
        temperature=temperature,
    )


def moved(model, scale):
    other = copy.deepcopy(model)
    dice = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=dice))
    return other


RIGHT = Answered(engine="engine 0", fresh=(-1.0, -2.0), cached=(-1.0, -2.0))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_right_numbers_have_no_cause(model, temperature):
    rows = drawn(model, temperature=temperature)
    assert find_cause(rows, trainer(model, temperature=temperature), [RIGHT], LEVEL).kind == "none"


@pytest.mark.parametrize(
    ("asked", "used"), few([(1.0, 0.8), (1.0, 1.05), (0.7, 1.0), (0.6, 2.0), (1.0, 0.3)], (1.0, 1.05), (0.6, 2.0))
)
def test_another_temperature_is_named_with_its_value(model, asked, used):
    cause = find_cause(drawn(model, temperature=used), trainer(model, temperature=asked), [RIGHT], LEVEL)
    assert cause.kind == "temperature"
    assert cause.evidence["value"] == pytest.approx(used, rel=1e-3)


def test_raw_log_probabilities_are_those_of_temperature_1(model):
    rows = drawn(model, temperature=0.7, reported=1.0)
    cause = find_cause(rows, trainer(model, temperature=0.7), [], LEVEL)
    assert cause.kind == "temperature"
    assert "processed_logprobs" in cause.fix


@pytest.mark.parametrize(
    ("name", "value"),
    few(
        [
            ("top_k", 5),
            ("top_k", 20),
            ("top_p", 0.9),
            ("top_p", 0.97),
            ("top_p", 0.8371),
            ("min_p", 0.05),
            ("min_p", 0.1),
        ],
        *(("top_k", 20), ("top_p", 0.8371), ("min_p", 0.05)),
    ),
)
@pytest.mark.parametrize("temperature", few([1.0, 0.7], 0.7))
def test_truncation_is_named_with_its_kind_and_value(model, temperature, name, value):
    rows = drawn(model, temperature=temperature, **{name: value})
    cause = find_cause(rows, trainer(model, temperature=temperature), [RIGHT], LEVEL)
    assert (cause.kind, f"belong to {name} = " in cause.text) == ("truncation", True), cause
    assert cause.evidence["value"] == pytest.approx(value, abs=0.02)
    assert cause.evidence["above_trainer"] == 1, "the kept tokens share the mass of the removed ones"


@pytest.mark.slow
def test_a_prompt_that_is_read_in_another_way_is_named(model):
    cause = find_cause(drawn(model, read=lambda ids: (BOS, *ids)), trainer(model), [RIGHT], LEVEL)
    assert (cause.kind, "with <bos> in front" in cause.text) == ("template", True), cause
    cause = find_cause(drawn(model, read=lambda ids: ids[1:]), trainer(model), [RIGHT], LEVEL)
    assert (cause.kind, "without their first token" in cause.text) == ("template", True), cause


@pytest.mark.parametrize("scale", few([0.003, 0.02], 0.003))
def test_stale_weights_are_named_with_their_version(model, scale):
    older, oldest = moved(model, scale), moved(moved(model, scale), scale)
    cause = find_cause(drawn(older), trainer(model, earlier=(oldest, older)), [RIGHT], LEVEL)
    assert (cause.kind, cause.evidence["value"]) == ("versions", 1), cause


@pytest.mark.slow
def test_an_engine_in_bfloat16_is_named(model):
    cause = find_cause(drawn(copy.deepcopy(model).bfloat16()), trainer(model, earlier=(moved(model, 0.02),)), [], LEVEL)
    assert cause.kind == "precision", cause


def test_rounding_is_that_of_the_temperature_of_the_run(model):
    """At temperature 0.1 an engine in bfloat16 has ten times the rounding of temperature 1. With the level of that
    temperature it is neither mistaken for another cause nor reported at all."""
    rounded = copy.deepcopy(model).bfloat16()
    rows = drawn(rounded, temperature=0.1)
    cause = find_cause(rows, trainer(model, temperature=0.1), [], LEVEL.at(0.1))
    assert cause.kind == "precision", cause
    assert cause.evidence["rounding"] == pytest.approx(cause.evidence["mean_abs"], rel=0.3)


def test_what_an_engine_says_of_itself_comes_first(model):
    rows = drawn(model, temperature=0.7)
    wrong = replace(RIGHT, engine="engine 1", wrong_weights="lm_head.weight is another")
    cause = find_cause(rows, trainer(model), [RIGHT, wrong], LEVEL)
    assert (cause.kind, "engine 1" in cause.text, "lm_head.weight" in cause.text) == ("weights", True, True)
    cause = find_cause(rows, trainer(model), [replace(RIGHT, cached=(-1.0, -2.4))], LEVEL)
    assert (cause.kind, "0.4 nats" in cause.text) == ("cache", True)


@pytest.mark.slow
def test_rows_that_are_right_do_not_hide_those_that_are_wrong(model):
    """This happens if one of several engines is wrong."""
    rows = [*drawn(model, count=30)[12:], *drawn(model, temperature=0.8)]
    cause = find_cause(rows, trainer(model), [RIGHT], LEVEL)
    assert (cause.kind, cause.evidence["touched"], cause.evidence["rows"]) == ("temperature", 12, 30), cause


def test_one_odd_token_is_not_taken_for_a_law(model):
    rows = drawn(model)
    rows[3] = replace(rows[3], logprobs=(rows[3].logprobs[0] - 4.0, *rows[3].logprobs[1:]))
    assert find_cause(rows, trainer(model), [RIGHT], LEVEL).kind == "unknown"


def test_what_no_question_explains_is_unknown_and_told_with_its_numbers(model):
    rows = drawn(moved(model, 0.02))
    cause = find_cause(rows, trainer(model), [RIGHT], LEVEL)
    assert cause.kind == "unknown", cause
    assert "engine 0: weights and cache are right" in cause.text
    assert all(math.isfinite(left) for left in cause.evidence["left"].values())
