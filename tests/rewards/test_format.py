"""Format rewards: sections that occur once and alone, and JSON without any other text."""

from __future__ import annotations

import doctest
import time

import pytest
from tests.catalogue import catalogue

from posttrain.errors import ConfigError
from posttrain.rewards import format as form
from posttrain.rewards.format import format_tags

GOOD = "<think>2 + 2</think>\n<answer>4</answer>"


@pytest.mark.parametrize(
    "text", [GOOD, f"  {GOOD}\n", "<think></think><answer>four</answer>", "<think>a<b</think><answer>-1</answer>"]
)
def test_the_whole_completion_is_its_sections(text):
    assert (format_tags(text).score, format_tags(text).reason) == (1.0, "correct")


@catalogue(
    "text, reason",
    [
        ("", "no_answer"),
        ("4", "no_answer"),
        ("<think>2 + 2</think>\n<answer></answer>", "no_answer"),
        ("<think>2 + 2</think>\n<answer>4", "no_answer"),
        ("<think>x</think><answer>?</answer>", "wrong"),
        ("<think>x</think><answer>4</answer> And so it is.", "wrong"),
        ("Sure! <think>x</think><answer>4</answer>", "wrong"),
        ("<answer>4</answer><think>x</think>", "wrong"),
        ("<think>x<answer>4</answer></think>", "wrong"),
        ("<think>x</think><think>y</think><answer>4</answer>", "wrong"),
        ("<think>x</think><answer>4</answer><answer>5</answer>", "no_answer"),
        ("<think>x</think></think><answer>4</answer>", "wrong"),
        ("<THINK>x</THINK><answer>4</answer>", "wrong"),
        ("</think>x<think><answer>4</answer>", "wrong"),
    ],
)
def test_anything_else_has_another_form(text, reason):
    verdict = format_tags(text)
    assert (verdict.score, verdict.reason) == (0.0, reason)
    assert verdict.detail.startswith("not ")


def test_the_answer_is_what_was_found_in_the_last_section():
    assert format_tags(GOOD).extracted == "4"


def test_partial_is_the_share_of_the_rules_that_hold_and_nothing_earns_nothing():
    shares = {text: format_tags(text, partial=True).score for text in ("", "4", "<think>x</think>", f"{GOOD} Done.")}
    assert list(shares.values()) == [0.0, 0.0, 0.25, 0.75]
    assert format_tags(f"{GOOD} Done.", partial=True).reason == "partial"


def test_a_prompt_may_open_the_first_section():
    assert format_tags("x</think><answer>4</answer>", opened=True).score == 1
    assert format_tags(GOOD, opened=True).score == 0
    assert format_tags("<plan>a</plan><code>b</code>", sections=["plan", "code"]).score == 1


def test_a_completion_that_was_cut_says_so():
    assert format_tags("<think>2 + 2", truncated=True).reason == "truncated"
    assert format_tags(GOOD, truncated=True).reason == "correct"


@pytest.mark.parametrize("sections", [[], "think", ["a", "a"], ["a b"], [1]])
def test_sections_are_a_list_of_names(sections):
    with pytest.raises(ConfigError, match="sections = "):
        format_tags("x", sections=sections)


def test_a_flood_of_tags_is_read_in_no_time():
    started = time.perf_counter()
    format_tags("<think>" * 200_000 + "</answer>" * 200_000)
    assert time.perf_counter() - started < 60


# JSON by a schema

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}, "why": {"type": "string", "minLength": 1}},
    "required": ["answer"],
    "additionalProperties": False,
}


@pytest.fixture
def json_schema():
    pytest.importorskip("jsonschema", reason="the extra [schema] is not installed")
    return form.json_schema


@pytest.mark.parametrize("text", ['{"answer": 4}', '<think>{}</think>\n {"answer": 4, "why": "2 + 2"} '])
def test_json_that_fits_is_right(json_schema, text):
    assert json_schema(text, schema=SCHEMA).score == 1


@catalogue(
    "text, reason, detail",
    [
        ("", "no_answer", ""),
        ("four", "no_answer", "no JSON"),
        ('{"answer": 4} ', "correct", ""),
        ('The answer: {"answer": 4}', "no_answer", "no JSON"),
        ('{"answer": 4}{"answer": 5}', "no_answer", "no JSON"),
        ('{"answer": 3, "answer": 4}', "no_answer", "a key occurs twice"),
        ('{"answer": NaN}', "no_answer", "NaN is not a JSON number"),
        ('{"answer": 1e999}', "no_answer", "1e999 is too large"),
        ("[" * 100_000, "no_answer", "nested too deep"),
        ('{"answer": ' + "9" * 10_000 + "}", "no_answer", "no JSON"),
        ('{"answer": "4"}', "wrong", r"$.answer: '4' is not of type 'integer'"),
        ('{"answer": 4, "score": 1}', "wrong", "Additional properties"),
        ('```json\n{"answer": 4}\n```', "no_answer", "no JSON"),
        ('<think>{"answer": 4}', "no_answer", ""),
    ],
)
def test_anything_beside_it_is_not(json_schema, text, reason, detail):
    verdict = json_schema(text, schema=SCHEMA)
    assert verdict.reason == reason
    assert detail in verdict.detail


def test_a_fence_is_allowed_where_it_is_declared_and_is_all(json_schema):
    fenced = '```json\n{"answer": 4}\n```'
    assert json_schema(fenced, schema=SCHEMA, fenced=True).score == 1
    assert json_schema(f"{fenced}\nDone.", schema=SCHEMA, fenced=True).score == 0


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "number of apples"}, "the schema is invalid: "),
        ("object", "schema = 'object'"),
        ({"$ref": "http://127.0.0.1:9/schema.json"}, "refers to http://127.0.0.1:9/schema.json"),
    ],
)
def test_a_schema_that_is_none_or_needs_the_network_is_refused(json_schema, schema, message):
    with pytest.raises(ConfigError, match=message):
        json_schema("{}", schema=schema)


def test_a_schema_that_never_ends_is_given_up(json_schema):
    assert json_schema("1", schema={"$ref": "#"}).reason == "too_large"


def test_the_examples_in_the_source_hold():
    assert doctest.testmod(form).failed == 0
