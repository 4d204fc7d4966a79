"""`posttrain advise`: flags, JSON, questions on a terminal and through a pipe, and a config on disk."""

import json
import os
import pty

import pytest

from posttrain.cli import run
from posttrain.config import load_config
from posttrain.errors import ConfigError
from posttrain.lab.advise.facts import Facts
from posttrain.lab.advise.questions import ask_for, machine, questions, yes_or_no


def shell(capsys, *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    return run(["advise", *arguments]), *capsys.readouterr()


@pytest.mark.slow
def test_flags_become_facts_and_text_is_printed(capsys):
    code, out, err = shell(capsys, "--data", "verifier,pairs", "--moe", "--size", "30b", "--gpus", "8x80", "--online")
    assert (code, err) == (0, "")
    assert "1. gspo" in out
    assert "algorithm:\n      name: gspo" in out
    assert "Sources" not in out


def test_the_answer_has_what_is_needed_first_and_details_have_the_rest(capsys):
    """The recommendation, its reasons, its memory and its config come first, and the others in a line or two each."""
    facts = ("--data", "verifier", "--size", "7b", "--gpus", "8xH100")
    _, short, _ = shell(capsys, *facts)
    _, full, _ = shell(capsys, *facts, "--details", "1")
    assert short.startswith("1. grpo  GRPO")
    places = [short.index(part) for part in ("a program checks", "Memory: 1 model", "Config", "Alternatives", "First")]
    assert places == sorted(places)
    assert "Measure the current model" in short
    assert "--details 1 also prints" in short
    rest = ("Needs", "How it fails", "Considered, not", "Where guides disagree", "Facts that would change", "Sources")
    assert all(part in full and part not in short for part in rest)
    assert len(short.splitlines()) < 60 < len(full.splitlines())


def test_json_is_one_object(capsys):
    code, out, _ = shell(
        capsys, "--data", "pairs", "--priority", "memory", "--size", "7b", "--gpus", "1xH100", "--json"
    )
    told = json.loads(out)
    assert code == 0
    assert told["facts"]["gpus"] == 1
    best = told["recommendations"][0]
    assert best["algorithm"] == "simpo"
    assert {reason["rule"] for reason in best["reasons"]} == {"pairs-dpo", "memory-reference-free"}
    assert best["cost"]["models"] == 1
    assert best["cost"]["bytes"] > 10 * 2**30
    assert {"before", "contradictions", "runners_up", "disagreements", "would_change", "assumed"} <= set(told)


def test_the_config_is_written_once(capsys, tmp_path):
    path = tmp_path / "run.yaml"
    assert shell(capsys, "--data", "thumbs", "--write", str(path))[0] == 0
    assert load_config(path).config.algorithm.name == "kto"
    code, _, err = shell(capsys, "--data", "thumbs", "--write", str(path))
    assert code == 2
    assert "exists already" in err
    code, _, err = shell(capsys, "--data", "nothing", "--write", str(tmp_path / "none.yaml"))
    assert code == 2
    assert "no algorithm can be recommended yet" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data", "pair"), "Did you mean pairs?"),
        (("--size", "huge"), "size = huge; allowed: a number above 0"),
        (("--gpus", "8xTPU"), "gpus = '8xTPU'"),
        (("--dta", "pairs"), "No such option: --dta"),
        (("--base-score", "140%"), "base_score = 1.4; allowed: a number from 0 to 1"),
    ],
)
def test_what_cannot_be_meant_has_exit_code_2(capsys, arguments, message):
    code, _, err = shell(capsys, *arguments)
    assert code == 2
    assert message in err


def test_without_a_terminal_and_without_flags_nothing_is_asked(capsys, monkeypatch):
    with open(os.devnull) as nothing, monkeypatch.context() as patch:
        patch.setattr("sys.stdin", nothing)
        code, out, err = shell(capsys)
    assert (code, err) == (0, "")
    assert "No algorithm fits: there is nothing to learn from yet." in out


@pytest.mark.slow
def test_questions_are_answered_through_a_pipe(capsys, monkeypatch):
    theirs, ours = os.pipe()
    os.write(ours, b"verifer\nverifier\nyes\n\nreasoning\n7b\ny\n8xH100\n\n30%\n")
    os.close(ours)
    with os.fdopen(theirs) as pipe, monkeypatch.context() as patch:
        patch.setattr("sys.stdin", pipe)
        code, out, err = shell(capsys, "--ask", "--details", "0")
    assert code == 0, err
    assert "Did you mean verifier?" in err
    assert "1. gspo" in out
    assert ">" not in out.splitlines()[0]


def test_on_a_terminal_questions_are_asked_and_enter_skips_them(capsys, monkeypatch):
    ours, theirs = pty.openpty()
    os.write(ours, b"pairs\n" + b"\n" * 12)
    with os.fdopen(theirs) as terminal, monkeypatch.context() as patch:
        patch.setattr("sys.stdin", terminal)
        code, out, asked = shell(capsys)
    os.close(ours)
    assert code == 0
    assert "What tells good answers from bad?" in asked
    assert "Is the verifier always right?" not in asked
    assert "1. dpo" in out


# The questions alone


def answered(*lines: str, facts: Facts | None = None) -> tuple[Facts, list[str], list[str]]:
    asked: list[str] = []
    complaints: list[str] = []
    left = list(lines)

    def ask(question: str) -> str:
        asked.append(question)
        if not left:
            raise EOFError
        return left.pop(0)

    return ask_for(facts or Facts(), ask, complaints.append), asked, complaints


def test_what_is_known_is_not_asked():
    facts, asked, _ = answered(*[""] * 20, facts=Facts(data="thumbs", size=7, gpus=1))
    assert facts == Facts(data="thumbs", size=7, gpus=1)
    known = [question.asks for question in questions() if question.fact in ("data", "size", "gpus")]
    assert len(known) == 3
    assert not [text for text in asked if text.startswith(tuple(known))]
    assert any("fine-tuned on instructions" in text for text in asked)


def test_a_wrong_answer_is_explained_and_asked_again():
    facts, _, complaints = answered("thumb", "thumbs", "maybe", "", "", "7x", "7b")
    assert facts.data == ("thumbs",)
    assert facts.size == 7
    assert "Did you mean thumbs?" in complaints[0]


def test_the_end_of_the_input_ends_the_questions():
    facts, asked, _ = answered("pairs")
    assert facts == Facts(data="pairs")
    assert len(asked) == 2


def test_there_are_few_questions():
    facts, asked, _ = answered("verifier", *[""] * 20)
    assert facts == Facts(data="verifier")
    assert len(asked) <= 9
    assert {question.fact for question in questions()} <= set(Facts.model_fields)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("cpu", {"gpus": 0}),
        ("4", {"gpus": 4}),
        ("8x80", {"gpus": 8, "gpu_memory": 80.0}),
        ("2x24GB", {"gpus": 2, "gpu_memory": 24.0}),
        ("8xH100", {"gpus": 8, "gpu_memory": 79.6}),
    ],
)
def test_machines(text, facts):
    assert machine(text) == facts


def test_yes_and_no():
    assert yes_or_no(" Yes ")
    assert not yes_or_no("0")
    with pytest.raises(ConfigError, match="allowed: yes or no"):
        yes_or_no("perhaps")
