"""Scores of other held-out rows, or of other tokens, are not ranked: refused before the sweep where it can be known,
and otherwise never called the best."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.lab.experiments.sweep.test_analysis import result

from posttrain.errors import ConfigError
from posttrain.lab.experiments.sweep.api import settings_for, sweep, write
from posttrain.lab.experiments.sweep.comparable import check_same_rows, measured, not_comparable
from posttrain.lab.experiments.sweep.confirm import scores_of, seed_folder
from posttrain.lab.experiments.sweep.study import TrialRecord

WORDS = ["ba", "dcba", "fedcba", "hgfedcba"] * 5
ROWS = {
    "prompts": [{"prompt": f"{w}>", "other": f"{w[1:]}>", "answer": w[::-1], "gold": w} for w in WORDS],
    "examples": [
        {"messages": [{"role": who, "content": w} for who in ("user", "assistant", "user", "assistant")]} for w in WORDS
    ],
    "pairs": [{"prompt": f"{w}>", "chosen": w[::-1], "rejected": w} for w in WORDS],
}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
ALGORITHMS = {"prompts": "grpo", "examples": "sft", "pairs": "dpo"}


def settings_of(folder: Path, kind: str, *knobs: str, **data):
    for name in ("train", "eval", "more"):
        rows = ROWS[kind] if name != "more" else ROWS[kind][:8]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "chat.jinja").write_text(TEMPLATE)
    model = {"path": "tiny:sort"} | ({"chat_template": str(folder / "chat.jinja")} if kind == "examples" else {})
    base = {
        "model": model,
        "algorithm": ALGORITHMS[kind],
        "data": {"train": str(folder / "train.jsonl"), "eval": str(folder / "eval.jsonl"), **data},
        "train": {"steps": 4},
    }
    base |= (
        {"rewards": [{"name": "exact_match"}], "sampling": {"max_completion_length": 16}} if kind == "prompts" else {}
    )
    knobs = tuple(knob.replace("HERE", str(folder)) for knob in knobs)
    return settings_for(base, knobs, {}, folder / "sweep")[0]


SPLIT = {"eval": None, "eval_fraction": 0.3}


@pytest.mark.parametrize(
    ("kind", "knob", "data"),
    [
        ("prompts", "data.max_prompt_length=int(4,9)", {}),
        ("prompts", "data.max_rows=choice(5,20)", SPLIT),
        ("prompts", "data.max_rows=int(5,20)", {}),
        ("prompts", "data.answer=choice(answer,gold)", {}),
        ("prompts", "data.train=choice(HERE/train.jsonl,HERE/more.jsonl)", SPLIT),
        ("examples", "data.max_length=choice(12,200)", {}),
        ("examples", "data.train_on=choice(all,last)", {}),
        ("pairs", "data.max_length=int(8,100)", {}),
        ("pairs", "data.columns=choice({}, {chosen: rejected, rejected: chosen})", {}),
        ("pairs", "algorithm.name=choice(dpo,sft)", {}),
    ],
)
def test_a_setting_that_changes_what_is_measured_is_refused_before_any_run(tmp_path, kind, knob, data):
    with pytest.raises(ConfigError, match=r"as a knob: the default measures (.|\n)*one value for all trials") as caught:
        check_same_rows(settings_of(tmp_path, kind, knob, **data))
    assert knob.partition("=")[0] in caught.value.given


@pytest.mark.parametrize(
    ("kind", "knob", "data"),
    [
        ("prompts", "data.max_prompt_length=int(20,90)", {}),
        ("prompts", "data.part=choice(1/2,2/2)", SPLIT),
        ("prompts", "data.system_prompt=choice(ab,cd)", {}),
        ("prompts", "data.prompt=choice(prompt,other)", {}),
        ("prompts", "data.train=choice(HERE/train.jsonl,HERE/more.jsonl)", {}),
        ("examples", "data.max_length=int(100,200)", {}),
        ("examples", "data.system_prompt=choice(ab,cd)", {}),
        ("pairs", "model.precision=choice(auto,float32)", {}),
        ("pairs", "train.learning_rate=log(1e-5,1e-3)", {}),
        ("prompts", "data.max_prompt_length=int(4,9)", {"eval": "missing.jsonl"}),  # the trials report it
    ],
)
def test_a_setting_that_changes_only_the_training_may_be_swept(tmp_path, kind, knob, data):
    check_same_rows(settings_of(tmp_path, kind, knob, **data))


def test_the_limit_of_answers_may_be_swept_if_held_out_answers_keep_theirs(tmp_path):
    def swept(choices, **evaluation):
        settings = settings_of(tmp_path, "prompts", f"sampling.max_completion_length=choice({choices})")
        check_same_rows(replace(settings, given={**settings.given, "evaluation": evaluation}))

    with pytest.raises(ConfigError, match=r"Set evaluation\.max_completion_length, such as 16"):
        swept("8,16")
    swept("8,12", max_completion_length=16, prompts=4)
    swept("8,126", max_completion_length=16, prompts=4)  # no prompt fits, which the trials report
    with pytest.raises(ConfigError, match=r"prompts of 20 held-out rows, 121 measures .* 10"):
        swept("8,121", max_completion_length=16)


def test_a_refused_sweep_leaves_nothing_behind(tmp_path):
    pytest.importorskip("optuna", reason="the extra `sweep` is not installed")
    settings = settings_of(tmp_path, "prompts", "data.max_prompt_length=int(4,9)")
    with pytest.raises(ConfigError, match="as a knob"):
        sweep(settings.given, ["data.max_prompt_length=int(4,9)"], trials=1, seeds=0, folder=tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


LOSS = {"prompts": 4, "tokens": 20, "loss": {"mean": 2.0, "low": 1.9, "high": 2.1, "n": 4}}
GREEDY = {"prompts": 4, "greedy": {"score": {"mean": 0.5, "low": 0.4, "high": 0.6, "n": 4}}}
RUNS = {
    "loss": (LOSS, [5, 5, 5, 5], None),
    "answers": (GREEDY, None, [0, 1, 2, 3]),
    "earlier": (LOSS, None, None),
}


def write_run(folder: Path, evaluation, lengths=None, indices=None) -> None:
    (folder / "evaluations").mkdir(parents=True)
    words = {"kind": "evaluation", "message": "reward_model: held-out accuracy 80%"}
    events = [{"kind": "evaluation", "step": step, "evaluation": evaluation} for step in (0, 4)]
    (folder / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in [words, *events, {"kind": "end"}]))
    if lengths is not None:
        (folder / "evaluations" / "baseline-scores.json").write_text(json.dumps({"tokens": lengths}))
    if indices is not None:
        rows = ({"index": index, "prompt": "one line\u2028for JSON"} for index in indices)
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / "evaluations" / "baseline.jsonl").write_text("".join(lines), encoding="utf-8")


def trials_of(folder: Path, *runs) -> tuple[list[TrialRecord], dict[int, Path]]:
    folders = {number: folder / f"trial-{number:03d}" for number in range(len(runs))}
    for number, run in enumerate(runs):
        if run is not None:
            write_run(folders[number], *run)
    values = {"train.learning_rate": 1e-3}
    records = [
        TrialRecord(number=n, values=values | {"data.max_length": n}, outcome="finished", score=0.1 * n)
        for n in range(len(runs))
    ]
    return records, folders


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (RUNS["loss"], ({**LOSS, "prompts": 3}, None)),
        (RUNS["loss"], ({**LOSS, "tokens": 19}, None)),
        (RUNS["loss"], (LOSS, [4, 6, 5, 5])),
        (RUNS["loss"], RUNS["answers"]),
        (RUNS["earlier"], ({**LOSS, "tokens": 19}, [5, 5, 5, 4])),
        (RUNS["answers"], (GREEDY, None, [0, 1, 2, 4])),
        (RUNS["answers"], ({**GREEDY, "prompts": 5}, None)),
    ],
)
def test_trials_that_measured_something_else_have_no_best(tmp_path, first, second):
    trials, folders = trials_of(tmp_path, first, None, first, second)
    said = not_comparable(trials, folders)
    assert "not comparable, so none is called the best: trial 0" in said
    assert "trial 3" in said
    assert "1 of 3 trials differ" in said
    assert "(data.max_length)" in said
    shown = replace(result([]), not_comparable=said)
    assert shown.sentences() == [said]
    assert shown.to_json()["comparable"] is False
    (tmp_path / "best.yaml").write_text("of an earlier version")
    write(replace(shown, folder=tmp_path))
    assert not (tmp_path / "best.yaml").exists()
    assert "The trials are not comparable</h2>" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_trials_that_measured_the_same_are_ranked_whatever_the_untrained_model_scored(tmp_path, run):
    other = json.loads(json.dumps(run[0]).replace("2.0", "1.0").replace("0.5", "0.3"))
    assert not not_comparable(*trials_of(tmp_path, run, None, (other, *run[1:]), run[:1]))


def test_a_folder_without_a_measurement_says_nothing(tmp_path):
    assert measured(tmp_path / "none") is None
    assert not not_comparable(*trials_of(tmp_path, None, None))


def test_a_fresh_seed_with_other_rows_on_one_side_has_no_scores(tmp_path):
    for seed, count in ((1, 4), (2, 3)):
        write_run(seed_folder(tmp_path, "best", seed), {**LOSS, "prompts": count})
        write_run(seed_folder(tmp_path, "default", seed), LOSS)
    scores = scores_of([1, 2], tmp_path)
    assert [score.score for score in scores] == [2.0, 2.0, None, None]
    assert "not comparable" in scores[2].reason
