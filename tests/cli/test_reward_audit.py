"""`posttrain reward audit`: exit codes, one JSON object, the config file of a run, and errors for wrong input."""

import json
from pathlib import Path

import pytest
from tests.rewards.audit.rows import planted, sums

from posttrain.cli import run


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "sums.jsonl"
    path.write_text("\n".join(map(json.dumps, sums())))
    return str(path)


@pytest.mark.slow
def test_an_honest_reward_exits_with_0_and_a_cheatable_one_with_1(rows, capsys):
    assert run(["reward", "audit", planted("honest:marked"), "--data", rows, "--only", "false_accepts"]) == 0
    assert "Nothing failed: 1 ok" in capsys.readouterr().out
    assert run(["reward", "audit", planted("accepting:substring"), "--data", rows, "--only", "false_accepts"]) == 1
    assert "Do not train on this reward yet: 1 fail" in capsys.readouterr().out


@pytest.mark.slow
def test_json_is_one_object_with_every_finding(rows, capsys):
    code = run(["reward", "audit", planted("returning:nan"), "--data", rows, "--only", "contract", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert (code, report["ok"]) == (1, False)
    (finding,) = report["audits"][0]["checks"]
    assert (finding["check"], finding["status"], finding["limit"]) == ("contract", "fail", "fail > 0 answers")
    assert any("nan" in example for example in finding["examples"])


@pytest.mark.slow
def test_a_person_reads_whether_to_train(rows, capsys):
    assert run(["reward", "audit", planted("honest:marked"), "--data", rows, "--only", "contract"]) == 0
    assert "Nothing failed: 1 ok" in capsys.readouterr().out
    assert run(["reward", "audit", planted("returning:nan"), "--data", rows, "--only", "contract"]) == 1
    assert "Do not train on this reward yet: 1 fail" in capsys.readouterr().out


@pytest.mark.slow
def test_every_reward_of_a_run_is_audited_on_its_data(rows, tmp_path, capsys):
    config = tmp_path / "run.yaml"
    config.write_text(
        f"model: tiny\nalgorithm: grpo\ndata: {{train: {rows}, eval_fraction: 0.1}}\ntrain: {{steps: 1}}\n"
        f"rewards: [{{name: gsm8k}}, {{function: '{planted('honest:brevity')}', weight: 0.1}}]\n"
    )
    assert run(["reward", "audit", str(config), "--only", "contract", "--json"]) == 0
    audits = json.loads(capsys.readouterr().out)["audits"]
    assert [(audit["reward"], audit["kind"], audit["rows"]) for audit in audits] == [
        ("gsm8k", "exact", 60),
        ("brevity", "format", 60),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kind", "exactly"], "kind = 'exactly'; did you mean \"exact\"?"),
        (["--only", "nose"], "there is no check 'nose'; did you mean \"noise\"?"),
        (["--form", "<final>"], "a text with the word GOLD in place of the answer"),
        (["--answer", "solution"], "the data has no column 'solution'"),
    ],
)
def test_what_cannot_be_meant_is_refused(rows, arguments, said, capsys):
    assert run(["reward", "audit", planted("honest:marked"), "--data", rows, *arguments]) == 2
    assert said in capsys.readouterr().err


def test_too_few_rows_are_refused(tmp_path, capsys):
    path = tmp_path / "few.jsonl"
    path.write_text("\n".join(map(json.dumps, sums(49))))
    assert run(["reward", "audit", "gsm8k", "--data", str(path)]) == 2
    assert "an audit of 49 usable rows; allowed: at least 50" in capsys.readouterr().err
