"""Models measured on given answers: the numbers of a run, the same numbers again, and any model with any file."""

from __future__ import annotations

import json
import random
import string
from pathlib import Path
from typing import Any

import pytest
from tests.catalogue import few
from tests.tiny import tiny_model

import posttrain as pt
from posttrain import evaluate_given
from posttrain.errors import ConfigError, ModelError
from posttrain.evaluate.given import kind_named, learned_from_given
from posttrain.export.origin import find_origin
from posttrain.export.probes import find_probes
from posttrain.models.load import load_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("given")
    tiny_model(folder / "model")
    dice = random.Random(0)
    words = ["".join(dice.choices(string.ascii_lowercase, k=4)) for _ in range(24)]
    pairs = [{"prompt": w, "chosen": "".join(sorted(w)), "rejected": w[::-1] + "q"} for w in words]
    labels = [{"prompt": w, "completion": w + "z" * (n % 2), "label": n % 2 == 0} for n, w in enumerate(words)]
    turns = [[{"role": "user", "content": w}, {"role": "assistant", "content": w[::-1]}] for w in words]
    talks = [{"messages": [*turns[n], *turns[n - 1]]} for n in range(len(words))]
    for name, rows in {"pairs": pairs, "labels": labels, "talks": talks}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def run(folder: Path, algorithm: str, file: str, **settings: Any) -> pt.Run:
    return pt.train(
        {
            "model": str(folder / "model"),
            "algorithm": algorithm,
            "data": {"train": str(folder / file), "eval_fraction": 0.25} | settings.pop("data", {}),
            "train": {"steps": 2, "prompts_per_step": 8, "learning_rate": 1e-3},
            "output": str(folder / f"run-{algorithm}"),
            "report": False,
            **settings,
        }
    )


@pytest.mark.parametrize(
    ("algorithm", "data", "names"),
    [
        ("dpo", "pairs.jsonl", ["accuracy", "margin", "logps_chosen"]),
        ("kto", "labels.jsonl", ["auc", "logps_desirable"]),
        ("reward_model", "pairs.jsonl", ["accuracy", "margin"]),
    ],
)
def test_a_run_is_measured_again_as_it_measured_itself(folder, algorithm, data, names):
    trained = run(folder, algorithm, data)
    assert learned_from_given(trained.folder)
    with pytest.raises(ConfigError, match=r"a run without rewards, .*\n.*evaluate_given\(run\)"):
        pt.evaluate(trained.folder, k=3)
    again = evaluate_given(trained.folder).measured
    for name in names:
        assert again[name]["mean"] == pytest.approx(trained.evaluation["trained"][name]["mean"], abs=1e-4)


def test_a_run_on_rows_from_python_is_measured_wherever_its_folder_is(folder, tmp_path, monkeypatch):
    rows = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]
    monkeypatch.chdir(tmp_path)
    trained = run(folder, "dpo", "", data={"train": rows}, output="given")
    (tmp_path / "given").rename(tmp_path / "moved")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = evaluate_given(tmp_path / "moved").measured
    assert again["accuracy"]["mean"] == pytest.approx(trained.evaluation["trained"]["accuracy"]["mean"], abs=1e-4)
    origin = find_origin(tmp_path / "moved")
    probes = find_probes(origin, load_model(origin.model), file=None, count=2, max_new_tokens=4)
    assert probes.source == "held-out rows of the run"


@pytest.mark.slow
def test_the_settings_of_the_run_that_decide_a_number_are_kept(folder):
    """The answers of a conversation that count, the longest rows, the number of rows, and the confidence level."""
    settings = {"data": {"train_on": "last"}, "evaluation": {"prompts": 4, "confidence": 0.5}}
    template = folder / "chat.jinja"
    template.write_text(
        "{% for m in messages %}{{ m['role'][0] }}{{ m['content'] }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}a{% endif %}"
    )
    model = {"path": str(folder / "model"), "chat_template": str(template)}
    trained = run(folder, "sft", "talks.jsonl", model=model, **settings)
    again, theirs = evaluate_given(trained.folder).measured, trained.evaluation["trained"]
    assert [again[name] for name in ("prompts", "tokens", "confidence")] == [4, theirs["tokens"], 0.5]
    assert again["loss"] == pytest.approx(theirs["loss"], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", few(["dpo", "reward_model"], "reward_model"))
def test_rows_that_were_too_long_for_the_run_are_left_out_again_and_counted(folder, algorithm):
    rows = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]
    long = [{**row, "chosen": row["chosen"] * (1 + 9 * (n % 3 == 0))} for n, row in enumerate(rows)]
    (folder / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in long))
    settings = {"data": {"max_length": 24}, "evaluation": {"prompts": 3, "confidence": 0.5}}
    trained = run(folder, algorithm, "long.jsonl", output=str(folder / f"run-long-{algorithm}"), **settings)
    again = evaluate_given(trained.folder)
    assert "longer than 24 tokens" in again.dropped
    assert again.dropped in again.render()
    theirs = trained.evaluation["trained"]
    for name in ("pairs", "confidence"):
        assert again.measured[name] == theirs[name]
    assert again.measured["accuracy"] == pytest.approx(theirs["accuracy"], abs=1e-4)


@pytest.mark.parametrize("then", ["gone", "changed"])
def test_a_run_is_measured_with_the_template_of_its_checkpoint(folder, then):
    """The file that the config names belongs to the next experiment."""
    template = folder / f"{then}.jinja"
    template.write_text(
        "{% for m in messages %}{{ m['role'][0] }}{{ m['content'] }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}a{% endif %}"
    )
    model = {"path": str(folder / "model"), "chat_template": str(template)}
    trained = run(folder, "sft", "talks.jsonl", model=model, output=str(folder / f"run-{then}"))
    prompts = [{"prompt": [{"role": "user", "content": "abc"}], "answer": "cba"}]
    before = pt.evaluate(trained.folder, prompts, "exact_match", k=0, max_completion_length=4)
    template.unlink() if then == "gone" else template.write_text(
        "{% for m in messages %}{{ m['content'] }}{% endfor %}b"
    )
    again, theirs = evaluate_given(trained.folder).measured, trained.evaluation["trained"]
    assert again["loss"] == pytest.approx(theirs["loss"], abs=1e-4)
    after = pt.evaluate(trained.folder, prompts, "exact_match", k=0, max_completion_length=4)
    assert after.records == before.records


def test_any_model_is_measured_on_any_file(folder):
    found = evaluate_given(folder / "model", str(folder / "pairs.jsonl"), max_rows=10)
    assert found.kind == "pairs"
    assert found.measured["pairs"] == 10
    assert 0 <= found.measured["accuracy"]["mean"] <= 1
    assert "accuracy" in found.render()
    judged = evaluate_given(folder / "model", str(folder / "labels.jsonl"))
    assert judged.kind == "labels"
    assert "auc" in judged.measured


def test_what_cannot_be_measured_is_said(folder):
    with pytest.raises(ConfigError, match="no data to evaluate"):
        evaluate_given(folder / "model")
    with pytest.raises(ConfigError, match="rows of kind 'thumbs'; allowed: pairs, labels, examples, ratings, steps"):
        kind_named("thumbs")
    with pytest.raises(ConfigError, match=r"rows of kind steps for .* writes them"):
        evaluate_given(folder / "model", str(folder / "pairs.jsonl"), kind="steps")
    (folder / "nothing").mkdir()
    with pytest.raises(ModelError, match=r"config\.json"):
        evaluate_given(folder / "nothing", str(folder / "pairs.jsonl"))
