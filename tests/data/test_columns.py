"""Other column names are recognised if they are unambiguous, and mapped if the user says how."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.catalogue import catalogue
from tests.data.samples import jsonl, rows_of

from posttrain.config import DataConfig
from posttrain.data import inspect_data
from posttrain.data.columns import (
    _BEFORE_A_SIDE,
    _BETTER,
    _WORSE,
    better_side,
    is_tie,
    listed,
    require_columns,
    two_answers,
)
from posttrain.data.dropped import Dropped
from posttrain.data.forms import detect
from posttrain.data.split import read_split
from posttrain.errors import DataError

STEMS = ("", "response", "answer", "output", "completion")
COUPLES = [
    ("chosen_response", "rejected_response"), ("response_chosen", "response_rejected"), ("response_w", "response_l"),
    ("y_w", "y_l"), ("better", "worse"), ("preferred", "dispreferred"), ("preferred_output", "non_preferred_output"),
    ("accepted", "rejected"), ("winner", "loser"), ("Chosen_Answer", "Rejected_Answer"), ("good", "bad"),
]  # fmt: skip
PROMPTS = ("prompt", "question", "instruction", "query", "user_prompt")


def read(rows: list[dict[str, Any]], kind: Any) -> list[Any]:
    given = rows_of(*rows)
    form = detect(given, kind)
    return [form.read(row) for row in given]


@catalogue("couple", COUPLES)
def test_pairs_are_recognised_by_what_their_columns_are_called(couple):
    for prompt in PROMPTS:
        row = {"id": 7, prompt: "a?", couple[1]: "no", couple[0]: "yes", "chosen_model": "m1", "rejected_model": "m2"}
        (found,) = read([row], "pairs")
        assert found == {"prompt": "a?", "chosen": "yes", "rejected": "no"}


@given(st.sampled_from(STEMS), st.sampled_from(_BETTER), st.sampled_from(_WORSE), st.booleans(), st.booleans())
@settings(max_examples=200, deadline=None)
def test_any_two_words_for_better_and_worse_with_the_same_stem_are_a_pair(stem, better, worse, behind, messages):
    if not stem and (better == "w" or worse == "l"):
        return
    names = [f"{stem}_{word}" if behind and stem else f"{word}_{stem}" if stem else word for word in (better, worse)]
    answers: list[Any] = ["yes", "no"]
    if messages:
        answers = [[{"role": "assistant", "content": text}] for text in answers]
    (found,) = read([{"prompt": "a?", **dict(zip(names, answers, strict=True))}], "pairs")
    assert (found["chosen"], found["rejected"]) == tuple(answers)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "a", "better": 0.5, "worse": 0.2},
        {"prompt": "a", "better_x": "b", "worse_y": "c"},
        {"prompt": "a", "good_reply": "b", "bad_reply": "c", "good_text": "d", "bad_text": "e"},
        {"better": "b", "worse": "c"},
    ],
)
def test_what_is_not_certain_is_not_taken_for_pairs(row):
    with pytest.raises(DataError, match=r"preference pairs cannot be made of"):
        detect(rows_of(row), "pairs")


VERDICTS = [
    (("response_a", "response_b"), ["a", "B", "model_a", "response_b", "Response A"], [0, 1, 0, 1, 0]),
    (("output_1", "output_2"), [1, 2, "2", "output_1"], [0, 1, 1, 0]),
    (("response_0", "response_1"), [0, 1, "1"], [0, 1, 1]),
    (("answer_a", "answer_b"), ["first", "second"], [0, 1]),
    (("response_0", "response_1"), [1.0, 0.0, "1.0", "0.00"], [1, 0, 1, 0]),
    (("output_1", "output_2"), [1.0, 2.0, "model 2", "winner-output_1"], [0, 1, 1, 0]),
    (
        ("response_a", "response_b"),
        ["A>B", "B >> A", "a<b", "response_b > response_a", "model_a>model_b"],
        [0, 1, 1, 1, 0],
    ),
    (("response_1", "response_2"), ["1 > 2", "2 > 1", "1<<2"], [0, 1, 1]),
    (("reply_of_bot_a", "reply_of_bot_b"), ["bot_a", "Bot B"], [0, 1]),
]


@catalogue("sides, verdicts, better", VERDICTS)
def test_two_answers_and_a_verdict_are_pairs_and_ties_are_left_out(sides, verdicts, better):
    rows = [{"instruction": "a?", sides[0]: "x", sides[1]: "y", "preference": one} for one in [*verdicts, "tie"]]
    *found, tie = read(rows, "pairs")
    assert [(one["chosen"], one["rejected"]) for one in found] == [("xy"[n], "xy"[1 - n]) for n in better]
    assert tie == Dropped(f"rows:{len(rows)}", "a tie")


UNCLEAR = [
    ("ab", [(0, 1), ("left", "right"), (1, 0, 2), ("A", "C"), (-2, 3), ("not a", "not b"), ("worse_a", "worse_b")]),
    ("ab", [("a b", "b a"), ("a/b", "b/a"), ("a, b", "b, a"), ("a>a",), ("a>b>a",), ("a is worse than b",), ("[a]",)]),
    ("12", [(-1, 1, -2), ("-1", "1"), ("1/2", "2/1"), ("2-1", "1-2"), ("1:2",), (0.1, 0.2), ("0.1", "0.2"), (1.5,)]),
    ("01", [(-1, 1), ("-1", "0"), (0.1, 1.0), ("0.1", "1.0"), (float("inf"),), ("1e0",), (True, False)]),
]


@catalogue("ends, verdicts", [(ends, one) for ends, several in UNCLEAR for one in several])
def test_a_verdict_that_may_mean_either_is_not_guessed(ends, verdicts):
    sides = {f"response_{end}": answer for end, answer in zip(ends, "xy", strict=True)}
    with pytest.raises(DataError):
        detect(rows_of(*({"prompt": "a?", **sides, "preference": one} for one in verdicts)), "pairs")


@catalogue("stem", ["winner: {}", "answer: {}", "#{}", "the {}", "human_pref_{}", "slightly better: {}"])
@catalogue("ends", ["ab", "12"])
def test_a_verdict_may_have_words_that_cannot_reverse_it(stem, ends):
    sides = (f"response_{ends[0]}", f"response_{ends[1]}")
    assert [better_side(stem.format(end.upper()), sides) for end in ends] == [0, 1]
    assert [better_side(f"not {stem}".format(end), sides) for end in ends] == [None, None]


@pytest.mark.slow
@given(st.sampled_from(["ab", "12", "01"]), st.text("abn ot12<>=/-_.:,", max_size=9))
@settings(max_examples=500, deadline=None)
def test_a_verdict_with_another_word_or_sign_names_no_side(ends, verdict):
    """Only a side, two sides compared, or nothing is read from such texts."""
    found = better_side(verdict, (f"response_{ends[0]}", f"response_{ends[1]}"))
    for n in (0, 1):
        better, worse = ends[n], ends[1 - n]
        compared = {f"{better}>{worse}", f"{worse}<{better}"}
        bare = re.sub(r"([<>])\1*", r"\1", verdict.replace(" ", "").replace(".0", ""))
        assert (found == n) <= (bare in {better, *compared})


@given(st.sampled_from(["ab", "12", "01"]), st.text("abcdefghijklmnopqrstuvwxyz", min_size=1), st.sampled_from(" _-"))
def test_any_unknown_word_before_a_side_makes_it_unclear(ends, word, between):
    sides = (f"response_{ends[0]}", f"response_{ends[1]}")
    expected = 0 if word in _BEFORE_A_SIDE else None
    assert better_side(f"{word}{between}{ends[0]}", sides) == expected


@pytest.mark.parametrize("verdict", ["A=B", "a == b", "0.5", 0.5, "1=2"])
def test_equals_and_a_half_are_ties(verdict):
    assert is_tie(verdict)
    assert better_side(verdict, ("response_a", "response_b")) is None


@given(st.text(max_size=9) | st.integers() | st.floats() | st.none())
def test_no_verdict_is_read_as_both_a_tie_and_a_side_of_its_own(verdict):
    for sides in (("response_a", "response_b"), ("output_1", "output_2")):
        assert better_side(verdict, sides) in (None, 0, 1)
        assert is_tie(verdict) in (True, False)


@catalogue("prompt", ["question", "instruction", "query"])
@catalogue("answer", ["response", "output", "reply"])
def test_labels_and_ratings_are_recognised_too(prompt, answer):
    for label in ("label", "is_correct", "thumbs_up"):
        (found,) = read([{prompt: "a?", answer: "b", label: True}], "labels")
        assert found == {"prompt": "a?", "completion": "b", "label": True}
    for score in ("score", "rating", "reward"):
        (found,) = read([{prompt: "a?", answer: "b", score: 4}], "ratings")
        assert found == {"prompt": "a?", "completion": "b", "score": 4.0}


# --- data.columns -----------------------------------------------------------------------------------------------------

ROWS = [{"frage": f"{n}?", "gut": f"a{n}", "schlecht": f"b{n}", "chosen": "something else"} for n in range(20)]
NAMES = {"prompt": "frage", "chosen": "gut", "rejected": "schlecht"}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("suffix", ["jsonl", "json"])
def test_columns_are_read_under_the_names_that_are_given(write, streaming, suffix, tmp_path, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / "cache"))
    path = str(write(f"rows.{suffix}", jsonl(*ROWS) if suffix == "jsonl" else json.dumps(ROWS)))
    config = DataConfig(train=path, columns=NAMES, streaming=streaming, eval_fraction=0.2)
    split = read_split(config, seed=0)
    assert len(split.heldout) == 4
    for part in split:
        assert detect(part, "pairs").name == "prompt + chosen + rejected"
        assert all(set(row.values) == {"prompt", "chosen", "rejected"} for row in part)
        assert all(row.values["chosen"].startswith("a") for row in part)


def test_a_column_that_is_not_there_is_an_error_with_the_one_that_was_meant(write):
    path = str(write("rows.jsonl", jsonl(*ROWS)))
    for streaming in (False, True):
        with pytest.raises(DataError, match=r"chosen: gutt, but the data has no column 'gutt'") as error:
            read_split(DataConfig(train=path, columns={"chosen": "gutt"}, streaming=streaming), seed=0)
        assert "Set data.columns = {chosen: gut}." in str(error.value)


SPELLED = ["", "Question ", "a, b", "a: b", "yes", "12", "{q}", "#", "Frage/Überschrift", "a" * 129, "a\nb", "a\u2028b"]


@pytest.mark.parametrize("name", SPELLED[1:])
def test_advice_spells_a_column_so_that_a_config_reads_its_name(name):
    with pytest.raises(DataError) as error:
        detect(rows_of({name: "1?", "reply": "2"}), "examples")
    advice = str(error.value).rpartition("completion: ")[2]
    assert yaml.safe_load(advice.replace(", ...}.", "}")) == {"prompt": name}
    with pytest.raises(DataError) as error:
        require_columns({"prompt": f"{name}{name}"}, [name])
    assert yaml.safe_load(str(error.value).rpartition(" = ")[2][:-1]) == {"prompt": name}


def test_all_names_of_columns_stand_in_one_line_as_yaml_reads_them():
    assert yaml.safe_load(f"[{listed(SPELLED)}]") == SPELLED
    assert len(listed(SPELLED).splitlines()) == 1


@pytest.mark.parametrize("name", ["", "a:b", "a!r", "{q}", "a[", "a\nb", 'the "q"'])
def test_an_advised_template_names_a_column_that_can_stand_in_it(name):
    with pytest.raises(DataError, match=r'such as "\{Frage\}"\.'):
        detect(rows_of({name: "1?", "Frage": "2"}), "prompts")


def test_a_verdict_on_answers_whose_columns_have_two_words_needs_these_columns():
    row = {"prompt": "q", "response a": "x", "response b": "y", "better": "response a"}
    assert detect(rows_of(row, row), "pairs").needs == tuple(row)


def test_data_check_shows_which_column_was_read_as_which(write):
    path = str(write("rows.jsonl", jsonl(*({"query": f"{n}?", "better": "a", "worse": "b"} for n in range(3)))))
    said = inspect_data(path).render()
    assert "prompt (query) + chosen (better) + rejected (worse)" in said
    assert "not read" not in said
    mapped = inspect_data(str(write("more.jsonl", jsonl(*ROWS))), config=DataConfig(train="-", columns=NAMES))
    assert mapped.uses[0].kind == "pairs"


def test_two_answers_are_told_by_the_end_of_their_names():
    for columns, found in (
        (["history", "human_ref_A", "human_ref_B", "labels"], ("human_ref_A", "human_ref_B")),
        (["prompt", "response_0", "response_1"], ("response_0", "response_1")),
        (["answer_a", "answer_b", "answer_c"], None),
        (["model_a", "model_b"], None),
    ):
        assert two_answers(columns) == found
