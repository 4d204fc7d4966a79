"""What a run shows before its first step: rows as the model reads them, trained tokens marked, and a missing EOS."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

import posttrain
from posttrain.data.looks import cut, marked, stretches
from posttrain.report.terminal import TerminalView
from posttrain.train.first_rows import eos_notes
from posttrain.types import Example

FOOT = "⟦…⟧ is trained on; samples.txt has these rows"


def config(folder: Path, algorithm: str, data: str, **changes: Any) -> dict[str, Any]:
    return {
        "model": {"path": "tiny:sort", "device": "cpu"},
        "algorithm": {"name": algorithm},
        "data": {"train": data, "max_rows": 64},
        "train": {"steps": 1, "prompts_per_step": 4},
        "evaluation": {"writing": 0, "prompts": 8},
        "output": str(folder / "run"),
        "report": False,
        **changes,
    }


def shown(settings: dict[str, Any]) -> tuple[list[str], str]:
    """The lines of the terminal between the summary and the first measurement, and the text of samples.txt."""
    stream = io.StringIO()
    run = posttrain.train(settings, view=TerminalView(stream))
    lines = stream.getvalue().splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("steps ")) + 1
    end = next(i for i, line in enumerate(lines) if line.startswith("held-out baseline"))
    shown = [line for line in lines[begin:end] if not line.startswith(" ")]  # without the lines about durations
    return shown, (run.folder / "samples.txt").read_text()


def test_a_pair_is_shown_on_both_sides_with_its_answers_marked(tmp_path: Path):
    lines, kept = shown(config(tmp_path, "dpo", "task:pairs/taste"))
    assert len(lines) == 3
    assert lines[0].startswith("chosen: <bos>")
    assert lines[1].startswith("rejected: <bos>")
    assert all("⟦" in line and line.endswith("<eos>⟧") for line in lines[:2])
    assert lines[2] == FOOT
    assert kept == f"--- chosen\n{lines[0][8:]}\n\n--- rejected\n{lines[1][10:]}\n\n⟦…⟧ is what is trained.\n"


def test_labelled_answers_are_shown_with_one_of_each_class(tmp_path: Path):
    lines, _ = shown(config(tmp_path, "kto", "task:labels/taste"))
    assert sorted(line.split(":")[0] for line in lines[:2]) == ["desirable", "undesirable"]


def test_of_prompts_it_is_shown_what_the_model_will_read(tmp_path: Path):
    sampling = {"group_size": 2, "max_completion_length": 8}
    settings = config(tmp_path, "grpo", "task:sort", rewards=[{"name": "exact_match"}], sampling=sampling)
    lines, kept = shown(settings)
    (line,) = lines
    assert line.startswith("prompt: <bos>")
    assert line.endswith(">")
    assert "⟦" not in line
    assert kept.startswith(f"--- prompt\n{line[8:]}\n")


@pytest.mark.slow
def test_a_resumed_run_keeps_what_was_shown(tmp_path: Path):
    run = posttrain.train(config(tmp_path, "dpo", "task:pairs/taste"))
    kept = (run.folder / "samples.txt").read_text()
    stream = io.StringIO()
    posttrain.resume(run.folder, steps=2, view=TerminalView(stream))
    assert (run.folder / "samples.txt").read_text() == kept
    assert FOOT not in stream.getvalue()


# --- the end of an answer ---------------------------------------------------------------------------------------------

EOS = 2
WITH = Example(index=0, input_ids=(1, 5, EOS), completion_mask=(False, True, True))
WITHOUT = Example(index=0, input_ids=(1, 5), completion_mask=(False, True))
UNTRAINED = Example(index=0, input_ids=(1, 5, EOS), completion_mask=(False, True, False))


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([("answer", WITH), ("chosen", WITH)], None),
        (
            [("answer", WITHOUT), ("answer", UNTRAINED)],
            "no answer in the training data ends with a trained EOS (2 checked)",
        ),
        ([("chosen", WITH), ("chosen", UNTRAINED), ("desirable", WITH)], "1 of 3 answers in the training data"),
        ([("rejected", WITHOUT), ("undesirable", WITHOUT), ("prompt", WITHOUT)], None),
    ],
)
def test_answers_that_do_not_teach_to_stop_are_named_with_the_consequence(rows: list, says: str | None):
    notes = eos_notes(rows, {EOS})
    if says is None:
        assert notes == []
    else:
        assert notes[0].startswith(says)
        assert "run on" in notes[0]
        assert "posttrain data check" in notes[0]


# --- the format -------------------------------------------------------------------------------------------------------


def test_stretches_are_marked_where_training_begins_and_ends():
    example = Example(index=0, input_ids=(1, 2, 3, 4), completion_mask=(False, True, True, False))
    parts = stretches(example, lambda ids: "".join(map(str, ids)))
    assert parts == (("1", False), ("23", True), ("4", False))
    assert marked(parts) == "1⟦23⟧4"


def test_a_long_text_keeps_its_beginning_and_its_end():
    text = cut("a" * 1000 + "<eos>", 100)
    assert text.startswith("a" * 75)
    assert text.endswith("a<eos>")
    assert "[…]" in text
    assert len(text) < 110


def test_on_a_terminal_trained_text_has_a_colour_and_keeps_its_marks(monkeypatch: pytest.MonkeyPatch):
    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Tty()
    view = TerminalView(stream)
    view.started("run")
    view.rows([("chosen", (("2+2=", False), ("4\x1b[2J", True)))])
    view.close()
    assert "\x1b[32m⟦4⟨U+001B⟩[2J⟧" in stream.getvalue()
