"""`data check` shows what a run would read: the same columns, ids, drops and trained tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import few
from tests.data.samples import jsonl, real_tokenizer, shared_file

from posttrain.config import DataConfig
from posttrain.data import inspect_data
from posttrain.data.forms import FORMS
from posttrain.data.survey import kto_weights
from posttrain.errors import DataError


def test_prompts_are_counted_measured_and_shown(write, tokenizer):
    rows = [
        {"question": "1+1=", "answer": 2},
        {"question": "1+1=", "answer": 2},
        {"question": " "},
        {"question": "10+10="},
    ]
    report = inspect_data(str(write("sums.jsonl", jsonl(*rows))), tokenizer=tokenizer)
    (use,) = report.uses
    assert report.usable
    assert (report.rows, report.unit) == (4, "tokens")
    assert (use.kind, use.usable, use.duplicates) == ("prompts", 3, 1)
    assert use.mapping == "training with rewards, prompt from column 'question', answer from 'answer'"
    assert use.lengths["prompt"] == (5, 5, 7, 7, 7)  # BOS and four characters, twice; BOS and six
    assert [dropped.reason for dropped in use.dropped] == ["empty prompt"]
    assert [(column.name, column.types, column.missing) for column in report.columns] == [
        ("question", ("str",), 0),
        ("answer", ("int",), 2),
    ]
    assert (use.samples[0].origin, use.samples[0].parts, use.samples[0].answer) == (
        "sums.jsonl:1",
        (("1+1=", False),),
        2,
    )


def test_the_page_says_it_all(write, tokenizer):
    rows = [{"prompt": "1+1=", "completion": "2", "x": 0}, {"prompt": "1+2=", "completion": None}]
    text = inspect_data(str(write("sums.jsonl", jsonl(*rows, rows[0]))), tokenizer=tokenizer).render()
    for part in (
        "sums.jsonl: 3 rows",
        "completion  str, missing in 1 row",
        "x           int, missing in 1 row, not read",
        "supervised training, prompt + completion; for sft",
        "also        prompt (TRL), for grpo and the other algorithms that learn from rewards; see it with --as prompts",
        "usable      2 of 3 rows",
        "dropped     1 no value in column 'completion' (sums.jsonl:2)",
        "tokens      14, of which 4 are trained (29%)",
        "whole row          7         7         7         7         7",
        "! 1 row repeats an earlier one (sums.jsonl:3)",
        "--- sums.jsonl:1\n<bos>1+1=⟦2<eos>⟧",
        "The text in ⟦…⟧ is trained.",
    ):
        assert part in text


def test_without_a_tokenizer_lengths_are_in_characters(write):
    talk = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    report = inspect_data(str(write("talks.jsonl", jsonl({"messages": talk}))))
    (use,) = report.uses
    assert report.unit == "characters"
    assert use.samples[0].parts == (("user: hello\nassistant: ", False), ("hi\n", True))


def test_the_settings_of_a_run_are_followed(write):
    path = str(write("svamp.jsonl", jsonl({"Body": "Two and two.", "Question": "How many?", "Answer": 4.0})))
    report = inspect_data(path, config=DataConfig(train=path, prompt="{Body} {Question}", answer="Answer"))
    assert [use.kind for use in report.uses] == ["prompts"]
    assert report.uses[0].samples[0].parts == (("Two and two. How many?", False),)


def test_data_that_fits_no_use_says_why_for_each(write):
    report = inspect_data(str(write("odd.jsonl", jsonl({"a": 1, "b": 2}))))
    assert not report.usable
    text = report.render()
    assert "not usable: supervised training cannot use the columns a, b" in text
    assert "not usable: the data has no column for the prompt; its columns are a, b" in text


def test_data_of_which_nothing_is_left_is_not_usable(write):
    report = inspect_data(str(write("empty.jsonl", jsonl({"prompt": ""}, {"prompt": " "}))))
    assert not report.usable
    assert "dropped 2 of 2 rows: 2 empty prompt (empty.jsonl:1, empty.jsonl:2)" in report.render()


def test_what_cannot_be_read_is_an_error(write):
    with pytest.raises(DataError, match="line 1, column 2: broken JSON"):
        inspect_data(str(write("broken.jsonl", "{oops}\n")))


def test_the_report_is_plain_json(write, tokenizer):
    rows = [{"prompt": "a", "completion": answer} for answer in "bd"] + [{"prompt": ["x"], "completion": "c"}]
    report = inspect_data(str(write("rows.jsonl", jsonl(*rows))), tokenizer=tokenizer)
    found = json.loads(json.dumps(report.to_json()))
    assert found["usable"] is True
    assert found["uses"][0]["lengths"]["whole row"]["longest"] == 4
    assert found["uses"][0]["dropped"] == {"prompt: message without role and content": 1}
    assert found["uses"][0]["dropped_rows"][0]["origin"] == "rows.jsonl:3"


def test_long_samples_are_cut_on_the_page_only(write):
    report = inspect_data(str(write("long.jsonl", jsonl({"prompt": "x" * 5000, "answer": "y" * 5000}))))
    assert len(report.render()) < 2000
    assert len(report.uses[0].samples[0].parts[0][0]) == 5000


def test_a_kind_can_be_asked_for(write, tokenizer):
    rows = [{"prompt": "a", "chosen": "b", "rejected": "c", "score_chosen": 3, "score_rejected": 1.5}]
    path = str(write("pairs.jsonl", jsonl(*rows)))
    assert [
        inspect_data(path, tokenizer=tokenizer, kind=kind).uses[0].kind for kind in ("prompts", "ratings", None)
    ] == [
        "prompts",
        "ratings",
        "pairs",
    ]
    report = inspect_data(path, tokenizer=tokenizer)
    assert report.also == {"ratings": "score_chosen + score_rejected", "prompts": "prompt (TRL)"}
    assert report.uses[0].numbers["margin"] == (1.5,) * 5
    rated = inspect_data(path, tokenizer=tokenizer, kind="ratings").uses[0]
    assert (rated.usable, rated.records, rated.numbers["score"]) == (1, 2, (1.5, 1.5, 3.0, 3.0, 3.0))
    assert not inspect_data(path, tokenizer=tokenizer, kind="labels").usable


def test_plain_text_has_no_prompt_that_could_be_repeated(write, tokenizer):
    path = str(write("texts.jsonl", jsonl(*({"text": f"Write {n}."} for n in range(3)))))
    for unit in ({}, {"tokenizer": tokenizer}):
        (use,) = inspect_data(path, **unit).uses
        assert (use.kind, use.usable, use.repeated_prompts) == ("examples", 3, 0)


def test_both_sides_of_a_pair_are_shown_below_their_prompt(write, tokenizer):
    path = str(write("pairs.jsonl", jsonl({"prompt": "1+1=", "chosen": "2", "rejected": "three", "margin": 2})))
    text = inspect_data(path, tokenizer=tokenizer).render()
    assert "--- pairs.jsonl:1\n<bos>1+1=\nchosen: ⟦2<eos>⟧\nrejected: ⟦three<eos>⟧\nmargin: 2.0\n" in text


def test_of_a_long_conversation_every_turn_is_seen(write):
    long, turns = "x" * 700 + "end", ["user", "assistant"] * 3
    talk = [{"role": role, "content": f"{n} {long}"} for n, role in enumerate(turns)]
    report = inspect_data(str(write("talk.jsonl", jsonl({"prompt": talk[:-1], "completion": talk[-1:]}))))
    text = report.render()
    assert text.count("[…]") == len(turns)
    assert text.count("end\n") == len(turns)
    assert [n for n in range(len(turns)) if f"{n} xxx" in text] == [*range(len(turns))]
    short = [{"role": role, "content": f"{n} {'y' * 150}"} for n, role in enumerate(turns)]
    assert "[…]" not in inspect_data(str(write("short.jsonl", jsonl({"messages": short})))).render()
    assert report.to_json()["uses"][0]["samples"][0].keys() == {"origin", "parts", "rejected", "facts"}


def test_contradictions_are_told_from_repetitions(write, tokenizer):
    one, other = {"prompt": "a", "chosen": "b", "rejected": "c"}, {"prompt": "a", "chosen": "c", "rejected": "b"}
    (use,) = inspect_data(str(write("p.jsonl", jsonl(one, other, one))), tokenizer=tokenizer).uses
    assert (use.duplicates, use.contradictions, use.repeated_prompts) == (1, 2, 2)
    assert "2 rows contradict an earlier one: the same pair the other way round (p.jsonl:2, p.jsonl:3)" in str(
        use.findings
    )
    good, bad = ({"prompt": "a", "completion": "b", "label": label} for label in (True, False))
    (use,) = inspect_data(str(write("l.jsonl", jsonl(good, bad, good))), tokenizer=tokenizer).uses
    assert (use.kind, use.duplicates, use.contradictions) == ("labels", 1, 2)


@pytest.mark.parametrize(
    ("good", "bad", "advice"),
    [
        (1, 4, "algorithm.desirable_weight between 4 and 5.33 (kto)"),
        (4, 1, "algorithm.undesirable_weight between 3 and 4 (kto)"),
        (2, 2, ""),
        (3, 0, "all answers are desirable: there is nothing to compare them with"),
    ],
)
def test_classes_of_labels_come_with_the_weights_that_balance_them(write, tokenizer, good, bad, advice):
    rows = [{"prompt": "a", "completion": str(n), "label": n < good} for n in range(good + bad)]
    (use,) = inspect_data(str(write("labels.jsonl", jsonl(*rows))), tokenizer=tokenizer).uses
    assert use.classes == {name: count for name, count in (("true", good), ("false", bad)) if count}
    assert advice in str(use.findings) if advice else use.findings == ()


@given(desirable=st.integers(1, 10_000), undesirable=st.integers(1, 10_000))
def test_any_advised_weight_brings_the_ratio_where_kto_wants_it(desirable, undesirable):
    advised = kto_weights(desirable, undesirable) or {"desirable_weight": (1.0, 1.0)}
    for setting, limits in advised.items():
        for weight in limits:
            ratio = desirable / undesirable * (weight if setting == "desirable_weight" else 1 / weight)
            assert 1 - 1e-9 <= ratio <= 4 / 3 + 1e-9


@pytest.mark.parametrize(("chosen", "which"), [("xxxxxxxx", "longer"), ("x", "shorter")])
def test_a_shortcut_by_length_is_worth_a_line(write, tokenizer, chosen, which):
    rows = [{"prompt": f"{n}", "chosen": chosen + "x" * (n % 2), "rejected": "aaaa"} for n in range(20)]
    (use,) = inspect_data(str(write("pairs.jsonl", jsonl(*rows))), tokenizer=tokenizer).uses
    assert use.length_bias is not None
    assert use.length_bias.difference.mean == (4.5 if which == "longer" else -2.5)
    assert use.length_bias.longer_is_chosen.mean == (1.0 if which == "longer" else 0.0)
    assert f"chosen answers are {which}" in use.findings[0].message
    assert f"always choosing the {which} of the two would be right in 100%" in use.findings[0].message


@pytest.mark.parametrize("jitter", [0, 1], ids=["constant", "one token of jitter"])
@pytest.mark.parametrize(("by", "which"), [(1, "longer"), (30, "longer"), (-1, "shorter"), (-30, "shorter")])
def test_a_length_that_always_tells_is_reported_however_little_it_varies(write, tokenizer, by, which, jitter):
    """The strictest shortcut has no spread. One token of a hundred tells, too, if it is there in each pair."""
    rows = [
        {"prompt": f"{n}", "chosen": "x" * (100 + by + jitter * (n % 2) * (1 if by > 0 else -1)), "rejected": "a" * 100}
        for n in range(20)
    ]
    report = inspect_data(str(write("pairs.jsonl", jsonl(*rows))), tokenizer=tokenizer)
    (finding,) = report.uses[0].findings
    assert f"chosen answers are {which}, by " in finding.message
    assert finding.message.endswith(f"always choosing the {which} of the two would be right in 100%")
    text = report.render()
    assert "inf" not in text
    assert ("the same in every pair" in text) == (not jitter)


def test_a_rule_of_length_is_said_to_hold_where_lengths_differ(write, tokenizer):
    """Most chosen answers are shorter, though a long one makes them longer on average; some lengths are equal."""
    lengths = [2] * 20 + [3] * 5 + [90]
    rows = [{"prompt": f"{n}", "chosen": "x" * size, "rejected": "aaa"} for n, size in enumerate(lengths)]
    (use,) = inspect_data(str(write("pairs.jsonl", jsonl(*rows))), tokenizer=tokenizer).uses
    assert use.length_bias is not None
    assert use.length_bias.difference.mean > 0
    assert use.findings[0].message == (
        "chosen answers are mostly shorter; always choosing the shorter of the two would be right in 95% of the 21 "
        "pairs of different length"
    )


@pytest.mark.parametrize("told", [0, 3], ids=["all equal", "three of forty differ"])
def test_pairs_of_equal_length_have_no_shortcut(write, tokenizer, told):
    rows = [{"prompt": f"{n}", "chosen": "xx" if n < told else "x", "rejected": "a"} for n in range(40)]
    report = inspect_data(str(write("pairs.jsonl", jsonl(*rows))), tokenizer=tokenizer)
    assert report.uses[0].findings == ()
    assert "inf" not in report.render()
    assert ("the same in every pair); no pair has answers of different length" in report.render()) == (not told)


def test_lengths_without_a_bias_are_not_worth_one(write, tokenizer):
    rows = [{"prompt": f"{n}", "chosen": "x" * (1 + n % 5), "rejected": "a" * (1 + (n + 2) % 5)} for n in range(20)]
    (use,) = inspect_data(str(write("pairs.jsonl", jsonl(*rows))), tokenizer=tokenizer).uses
    assert use.findings == ()


def test_margins_that_say_otherwise_are_counted(write, tokenizer):
    rows = [{"prompt": str(n), "chosen": "b", "rejected": "c", "margin": n - 2} for n in range(5)]
    (use,) = inspect_data(str(write("pairs.jsonl", jsonl(*rows))), tokenizer=tokenizer).uses
    assert [finding.message[:34] for finding in use.findings] == [
        "2 pairs have a negative margin: by",
        "1 pair has a margin of 0: by their",
    ]


def test_what_is_longer_than_the_limit_is_named(write, tokenizer):
    path = str(write("rows.jsonl", jsonl({"prompt": "a", "completion": "b"}, {"prompt": "a" * 30, "completion": "b"})))
    report = inspect_data(path, tokenizer=tokenizer, max_length=20)
    assert [tuple(dropped) for dropped in report.uses[0].dropped] == [("rows.jsonl:2", "longer than 20 tokens")]
    assert "usable      1 of 2 rows, of at most 20 tokens" in report.render()


def test_the_limit_of_the_settings_counts_too(write, tokenizer):
    path = str(write("rows.jsonl", jsonl({"prompt": "a", "completion": "b"}, {"prompt": "a" * 30, "completion": "b"})))
    config = DataConfig(train=path, max_length=20)
    assert [inspect_data(path, config=config, max_length=limit).max_length for limit in (None, 50, 10)] == [20, 20, 10]
    assert inspect_data(path, config=config).uses[0].usable == 1


def test_every_form_stands_on_the_page_about_data():
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    rows = {line.split(" |")[0].removeprefix("| ") for line in page.splitlines() if line.startswith("| `")}
    assert {", ".join(f"`{name}`" for name in form.needs) for form in FORMS} <= rows


def test_the_chat_template_is_looked_at(write, chat_tokenizer):
    path = str(write("rows.jsonl", jsonl({"prompt": "a", "completion": "b"})))
    assert inspect_data(path, tokenizer=chat_tokenizer).findings == ()
    chat_tokenizer.chat_template = "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}{% endfor %}"
    found = " ".join(finding.message for finding in inspect_data(path, tokenizer=chat_tokenizer).findings)
    assert "chat template: nothing tells the model that it is its turn" in found
    assert "chat template: no EOS at the end of an answer" in found


def test_steps_are_counted(write, tokenizer):
    rows = [
        {"prompt": "a", "completions": ["b", "c"], "labels": [True, False]},
        {"prompt": "d", "completions": ["e"], "labels": [0.5]},
    ]
    (use,) = inspect_data(str(write("steps.jsonl", jsonl(*rows))), tokenizer=tokenizer).uses
    assert (use.kind, use.usable) == ("steps", 2)
    assert use.classes == {"right": 1, "wrong": 1, "between": 1}
    assert use.numbers["steps per answer"] == (1, 1, 2, 2, 2)


def test_streamed_data_is_reported_alike(write, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / "cache"))
    rows = [{"prompt": str(n % 7), "chosen": "b" * (n % 5), "rejected": "c"} for n in range(30)]
    path = str(write("pairs.jsonl", jsonl(*rows)))
    reports = [
        inspect_data(path, tokenizer=tokenizer, config=DataConfig(train=path, streaming=streaming))
        for streaming in (False, True)
    ]
    assert reports[0].to_json() == reports[1].to_json()
    assert reports[0].render() == reports[1].render()


REAL = {
    "math/gsm8k_test.jsonl": "prompts",
    "sft/llamafactory_alpaca_en_demo.jsonl.gz": "examples prompts",
    "sft/llamafactory_glaive_toolcall_en_demo.jsonl.gz": "examples",
    "preference/llamafactory_kto_en_demo.jsonl.gz": "labels examples",
    "preference/llamafactory_dpo_en_demo.jsonl.gz": "pairs prompts",
    "preference/ultrafeedback_eval.jsonl.gz": "pairs ratings prompts",
    "preference/hh_rlhf_harmless_base_test.jsonl.gz": "pairs",
    "preference/model_written_evals_agreeableness.jsonl": "pairs prompts",
}
"""Shared files -> the kinds of data that they can be used as, the likeliest first."""
QUICK = (
    "math/gsm8k_test.jsonl",
    "sft/llamafactory_glaive_toolcall_en_demo.jsonl.gz",
    "preference/llamafactory_kto_en_demo.jsonl.gz",
    "preference/ultrafeedback_eval.jsonl.gz",
)


@pytest.mark.parametrize("name", few(REAL, *QUICK))
def test_real_files_are_recognised(name):
    path = str(shared_file(name))
    config = DataConfig(train=path, max_rows=40)
    report = inspect_data(path, tokenizer=real_tokenizer("tokenizers/smollm2"), config=config)
    assert [report.uses[0].kind, *report.also] == REAL[name].split()
    for kind in report.also:
        assert inspect_data(path, config=config, kind=kind).uses, f"--as {kind} is accepted"
    dropped = [dropped.reason for dropped in report.uses[0].dropped]
    assert report.uses[0].usable == 40 - len(dropped)
    assert set(dropped) <= {"the chat template leaves out tool calls"}
    assert len(report.uses[0].samples) == 3
