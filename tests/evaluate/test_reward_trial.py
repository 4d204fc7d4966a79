"""Testing rewards before a run: answers of known quality, and the share of groups with signal."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.catalogue import few
from tests.rewards.rollouts import completion, prompt

from posttrain.cli import run as command
from posttrain.config import SamplingConfig
from posttrain.data.unknown import unknown_text
from posttrain.errors import ConfigError, DataError
from posttrain.evaluate import group_signal
from posttrain.evaluate.group_signal import ModelAnswers, about_right
from posttrain.evaluate.reward_trial import about_unknown, try_config, try_rewards
from posttrain.functional.estimators import differ_at_k
from posttrain.rewards import Reward, Scores, build_rewards
from posttrain.rewards.audit.api import read_prompts
from posttrain.rewards.audit.finding import Finding
from posttrain.tasks.tiny import build_tokenizer
from posttrain.types import Prompt

ROWS = [{"prompt": f"What is {n} plus {n}?", "answer": str(2 * n)} for n in range(1, 41)]
REWARDS = """
def honest(completion, answer):
    return float(completion.strip() == answer)

def generous(completion, answer):
    return float(completion == "" or completion.strip() == answer)

def blind(completion, answer):
    return float(len(completion) > 0)

def deaf(completion, answer):
    return 0.0

def picky(completion, answer):
    return float(completion.strip() == answer and int(answer) % 10 < 4)

def partial(completion, answer):
    return None if answer == "6" else words(completion, answer)

def broken(completion, answer):
    return float(completion.splitlines()[0] == answer)

def kind(completion, answer):
    return 1.0

def words(completion, answer):
    return float(completion.rstrip(".").endswith("answer is " + answer))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rewards.py").write_text(REWARDS)
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


def tried(capsys, *arguments: str):
    code = command(["reward", "test", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def status(trial) -> dict[str, str]:
    return {finding["check"]: finding["status"] for finding in trial["findings"]}


@pytest.mark.parametrize(
    ("function", "failed"),
    [
        ("honest", set()),
        ("words", set()),
        ("generous", {"empty answers"}),
        ("blind", {"answers of other rows"}),
        ("deaf", {"gold answers"}),
    ],
)
def test_a_reward_that_does_not_know_right_from_wrong_is_named(folder, capsys, function, failed):
    code, trial = tried(capsys, f"{folder}/rewards.py:{function}", "--data", f"{folder}/train.jsonl")
    assert {check for check, found in status(trial).items() if found == "fail"} == failed
    assert code == (1 if failed else 0)
    assert trial["ok"] == (not failed)


def text_of(trial, check: str) -> str:
    return next(found["text"] for found in trial["findings"] if found["check"] == check)


def test_accepted_golds_are_counted_where_most_are_not(folder, capsys):
    _, trial = tried(capsys, f"{folder}/rewards.py:picky", "--data", f"{folder}/train.jsonl")
    golds = [2 * n for n in range(1, 41) if 2 * n % 10 < 4]
    assert status(trial)["gold answers"] == "fail"
    assert 0.8 * len(golds) / 36 < trial["findings"][0]["measured"] < len(golds) / 36 + 1e-9, "a tenth is held out"


def test_a_row_to_which_the_reward_does_not_apply_hides_neither_the_form_nor_the_share(folder, capsys):
    code, trial = tried(capsys, f"{folder}/rewards.py:partial", "--data", f"{folder}/train.jsonl")
    assert code == 0
    assert trial["reads"] == "answer is"
    assert text_of(trial, "gold answers") == "35 of 35 accepted, reward 1"
    assert text_of(trial, "unscored answers") == "3 of 108 have no score"


def test_a_reward_that_fails_is_not_said_to_refuse(folder, capsys):
    """It raises an error for the empty answers, which are a third; a run stops at a fifth."""
    code, trial = tried(capsys, f"{folder}/rewards.py:broken", "--data", f"{folder}/train.jsonl")
    assert code == 1
    assert {check for check, found in status(trial).items() if found == "fail"} == {"unscored answers"}
    (finding,) = [found for found in trial["findings"] if found["check"] == "unscored answers"]
    assert "exception: IndexError" in finding["examples"][0]


def test_a_reward_that_pays_everything_alike_is_said_to(folder, capsys):
    _, trial = tried(capsys, f"{folder}/rewards.py:kind", "--data", f"{folder}/train.jsonl")
    assert text_of(trial, "gold answers") == "right, empty and wrong answers all got 1"


@pytest.mark.parametrize("column", few(["solution", "reference", "answer"], "solution", "answer"))
def test_the_verdict_says_why_right_answers_earn_nothing(tmp_path, capsys, column):
    """Programs that sort in place pass no test that compares the argument; a program that returns does."""
    test = "from solution import f\ndef test_it():\n    x = [2, 1]\n    assert {} == [1, 2], 'not sorted'\n"
    data = tmp_path / "rows.jsonl"
    for condition, program, ok in [("f(x) or x", "def f(x):\n    x.sort()\n", False), ("f(x)", "f = sorted\n", True)]:
        row = {"prompt": "Sort.", "test": test.format(condition), column: program}
        data.write_text(f"{json.dumps(row)}\n" * 4)
        _, trial = tried(capsys, "code", "--data", str(data), "--no-model")
        [gold] = [found for found in trial["findings"] if found["check"] == "gold answers"]
        assert gold["status"] == ("ok" if ok else "fail")
        if not ok:
            assert "def f(x)" in gold["examples"][0]
            assert gold["examples"][0].endswith("code: wrong, test 1 of 1: AssertionError: not sorted")


PLUS = "def plus(a, b):\n    return a + b\n"
VERL = {"inputs": ["1\n2"], "outputs": ["3"], "fn_name": "plus"}
GOLDLESS = [
    {"reward_model": {"style": "rule", "ground_truth": json.dumps(VERL)}},
    {"answer": json.dumps(VERL)},
    {"input_output": VERL},
    {"tests": [{"input": [1, 2], "output": 3}], "entry_point": "plus"},
    {"test": "def check(candidate):\n    assert candidate(1, 2) == 3\n", "entry_point": "plus"},
    {"test_list": ["assert plus(1, 2) == 3"]},
]


@pytest.mark.parametrize(("reference", "found"), [({}, "skipped"), ({"reference": PLUS}, "ok")])
def test_neither_tests_nor_a_prompt_is_a_right_answer(reference, found):
    with build_rewards([Reward(name="code")], training=True) as rewards:
        for columns in GOLDLESS:
            row = {"prompt": [{"role": "user", "content": "Write plus(a, b)."}], **columns, **reference}
            trial = try_rewards(rewards, read_prompts([row]), sampling=SamplingConfig())
            assert (trial.ok, trial.findings[0].check, trial.findings[0].status) == (True, "gold answers", found)


def test_each_reward_that_refuses_a_right_answer_says_why(folder, capsys):
    (folder / "rewards.py").write_text(
        "from posttrain.rewards import Verdict\n"
        "def stern(completion, answer):\n    return Verdict(0.0, 'late', detail='it is five past')\n"
    )
    _, trial = tried(capsys, f"{folder}/rewards.py:stern", "--data", f"{folder}/train.jsonl", "--no-model")
    assert trial["findings"][0]["examples"][0].endswith("stern: late, it is five past")


def test_a_column_that_the_rows_with_gold_answers_lack_is_there_as_in_a_run(folder, capsys):
    """A list function receives None for the column; an earlier version failed because the argument was missing."""
    function = "def scaled(completions, answer, scale):\n"
    scaled = f"\n{function}    return [float(text == gold) for text, gold in zip(completions, answer)]"
    (folder / "rewards.py").write_text(REWARDS + scaled)
    rows = [*ROWS, *({"prompt": f"Say {n}.", "scale": 2} for n in range(20))]
    (folder / "ragged.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, trial = tried(capsys, f"{folder}/rewards.py:scaled", "--data", f"{folder}/ragged.jsonl")
    assert code == 0
    assert status(trial) == dict.fromkeys(status(trial), "ok")


def test_a_reward_of_a_column_that_only_other_rows_have_is_one_that_tells_right_from_wrong(folder):
    """The rows of the trial are held out from data in which some rows have the column."""
    honest = Reward(function=f"{folder}/rewards.py:honest")
    words = Reward(function=f"{folder}/rewards.py:words", weight=0.1)
    asked = Prompt(index=0, ids=(1,), text="What is it?", columns_of_data=("answer",))
    with build_rewards([honest, words]) as built:
        scores = Scores(
            rewards_PG=[[0.0]],
            scored_PG=[[True]],
            parts={label: [[0.0]] for label in built.labels},
            failures=(),
            seconds={},
        )
        assert [found.status for found in about_right(built, [asked], scores)] == ["warn"]


def test_where_nothing_could_be_tried_nothing_is_said_to_be_well(folder, capsys):
    assert command(["reward", "test", "format", "--data", f"{folder}/train.jsonl"]) == 0
    said = capsys.readouterr().out
    assert "no reward reads it: right and wrong answers are unknown" in said
    assert "Nothing was tested: " in said
    assert "Nothing speaks against" not in said


def test_the_numbers_game_is_tried_with_solutions(tmp_path, capsys):
    rows = [{"prompt": "Reach it.", "target": 3 * n + 7, "nums": [3, n, 7]} for n in range(2, 42)]
    (tmp_path / "games.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, trial = tried(capsys, "countdown", "--data", f"{tmp_path}/games.jsonl")
    assert code == 0
    assert text_of(trial, "gold answers") == "36 of 36 accepted, reward 1"


def test_rows_without_a_prompt_are_an_error_that_says_so(folder, capsys):
    empty = folder / "empty.jsonl"
    empty.write_text("".join(json.dumps(row | {"prompt": ""}) + "\n" for row in ROWS))
    assert command(["reward", "test", f"{folder}/rewards.py:honest", "--data", str(empty)]) == 2
    assert "dropped 36 of 36 rows: 36 empty prompt" in capsys.readouterr().err


def test_it_says_in_which_form_answers_are_read(folder, capsys):
    _, trial = tried(capsys, f"{folder}/rewards.py:words", "--data", f"{folder}/train.jsonl")
    assert trial["reads"] == "answer is"
    assert trial["model"] is None


@pytest.mark.parametrize(
    "template", few(["{Question}", "{Body} {Question}", "{Body}: {Question} # 1"], "{Body}: {Question} # 1")
)
def test_a_template_over_columns_is_taken_as_it_is_written(folder, capsys, template):
    """A template needs no second pair of quotes on a command line, though braces, colons and # have a meaning in
    YAML."""
    rows = [{"Body": "Add", "Question": row["prompt"], "Gold": row["answer"]} for row in ROWS]
    (folder / "columns.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = ["--data", f"{folder}/columns.jsonl", "--prompt", template, "--answer", "Gold"]
    code, trial = tried(capsys, f"{folder}/rewards.py:honest", *named)
    assert (code, trial["rows"]) == (0, 36), "a tenth is held out"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(
        "model: tiny:sort\nalgorithm: grpo\ndata: {train: 'task:sort'}\nrewards: [{name: exact_match}]\n"
        "sampling: {group_size: 4, max_completion_length: 16}\ntrain: {steps: 2, prompts_per_step: 2}\n"
    )
    return path


@pytest.mark.slow
def test_the_share_of_groups_that_teach_is_that_of_the_models_answers(config, capsys):
    code, trial = tried(capsys, str(config), "--prompts", "16", "-k", "8")
    model = trial["model"]
    assert code == 0
    assert model["group_size"] == 4
    assert set(model["useful"]) == {"2", "4", "8"}
    shares = [model["useful"][size]["mean"] for size in ("2", "4", "8")]
    assert shares == sorted(shares), "a larger group differs more often"
    assert 0 < shares[1] < 1
    finding = next(found for found in trial["findings"] if found["check"] == "useful groups")
    assert finding["measured"] == shares[1]


def answered(monkeypatch, rewards_PG: list[list[float]], seen: Sequence[float]) -> tuple[ModelAnswers, Finding]:
    """What is said of answers with these rewards, beside completions of known quality with the rewards `seen`."""
    prompts = [prompt(n) for n in range(len(rewards_PG))]
    groups = [[completion("a") for _ in row] for row in rewards_PG]
    scored_PG = [[True] * len(row) for row in rewards_PG]
    scores = Scores(rewards_PG=rewards_PG, scored_PG=scored_PG, parts={}, failures=(), seconds={})
    monkeypatch.setattr(group_signal, "draw", lambda *_, **__: (groups, scores))
    sampling, sampler = SamplingConfig(group_size=2), SimpleNamespace(each=lambda *_, **__: iter(()))
    answers, _ = group_signal.sample_answers(None, prompts, sampler, sampling, None, 0, seen)  # type: ignore[arg-type]
    return answers, group_signal.about_answers(answers, sampling, 1.0)[-1]


@pytest.mark.parametrize("value", [5.0, 0.0, 1.0, 0.5, -1.0])
@pytest.mark.parametrize("prompts", [1, 8])
def test_prompts_are_neither_hard_nor_easy_for_a_reward_that_is_always_the_same(monkeypatch, value, prompts):
    answers, reach = answered(monkeypatch, [[value, value]] * prompts, [value])
    text = "\n".join(answers.lines())
    assert f"every answer got {value:.3g}: nothing is told apart" in text
    assert (reach.status, reach.measured) == ("warn", None)
    assert "check whether the reward distinguishes anything" in reach.examples[0]
    assert all(word not in text + str(reach) for word in ("inf", "nan", "hard 100%", "100% of"))


@pytest.mark.parametrize("seen", [[0.0, 1.0], [-1.0, 2.0]], ids=["marks", "scores"])
def test_a_task_that_the_model_cannot_do_yet_is_too_hard(monkeypatch, seen):
    """Right answers are known to get more. With marks the mean is a share, which has an interval at 0, too."""
    answers, reach = answered(monkeypatch, [[seen[0], seen[0]]] * 8, seen)
    text = "\n".join(answers.lines())
    assert "too hard 100%, too easy 0% of the prompts" in text
    assert "use easier questions" in reach.examples[0]
    assert ("mean reward 0 (0 to 0.3" if seen[0] == 0 else "mean reward -1 (no interval: 8 prompts)") in text


@pytest.mark.slow
def test_a_reward_without_signal_is_said_to_teach_nothing(config, folder, capsys):
    entry = f"rewards=[{{function: {folder}/rewards.py:deaf}}]"
    code, trial = tried(capsys, str(config), entry, "--prompts", "8")
    assert code == 1
    assert status(trial)["useful groups"] == "fail"
    assert trial["model"]["useful"]["4"]["mean"] == 0
    assert "nothing will be learned" in next(f["text"] for f in trial["findings"] if f["check"] == "useful groups")


@pytest.mark.parametrize("gate", ["", ", gate: strict"], ids=["the heaviest", "a gate"])
def test_groups_that_differ_only_by_shaping_are_a_warning(config, folder, capsys, gate):
    """No answer is right, and another reward pays for length whatever the answer is."""
    (folder / "shaping.py").write_text(
        "def strict(completion, answer):\n    return 0.0\n\n"
        "def short(completion):\n    return 1 / (1 + len(completion))\n"
    )
    shaped = f"{{function: {folder}/shaping.py:short, weight: 0.5}}"
    watched = f"{{name: exact_match, label: exact, weight: 0.1{gate}}}"
    entry = f"rewards=[{{function: {folder}/shaping.py:strict}}, {shaped}, {watched}]"
    _, trial = tried(capsys, str(config), entry, "--prompts", "6")
    assert status(trial)["useful groups"] == "ok"
    assert status(trial)["right answers"] == "warn"
    assert text_of(trial, "right answers").endswith("by strict: groups differ only by shaping, no answer was right")


@pytest.mark.slow
def test_right_answers_beside_shaping_are_counted(config, folder, capsys):
    entry = f"rewards=[{{name: exact_match}}, {{function: {folder}/rewards.py:kind, weight: 0.1}}]"
    _, trial = tried(capsys, str(config), entry, "--prompts", "16")
    assert status(trial)["right answers"] == "ok"


def test_fewer_answers_than_a_group_has_are_refused(config, capsys):
    assert command(["reward", "test", str(config), "--prompts", "4", "-k", "2"]) == 2
    assert "2 answers to each prompt, for groups of 4" in capsys.readouterr().err


@pytest.mark.slow
def test_cut_answers_are_held_against_the_guard(config, capsys):
    short = "sampling.max_completion_length=2"
    assert status(tried(capsys, str(config), short, "--prompts", "4")[1])["truncated answers"] == "fail"
    allowed = [short, "guards.max_truncated=1.0"]
    assert status(tried(capsys, str(config), *allowed, "--prompts", "4")[1])["truncated answers"] == "ok"


@pytest.mark.slow
def test_the_same_config_gives_the_same_trial(config):
    from posttrain.config import load_config

    loaded = load_config(config).config
    one, two = (try_config(loaded, folder=config.parent, prompts=4).to_json() for _ in range(2))
    assert one == two


def test_a_person_reads_the_findings(config, capsys):
    assert command(["reward", "test", str(config), "--no-model"]) == 0
    text = capsys.readouterr().out
    assert "OK      gold answers" in text
    assert "The rewards tell right answers from wrong ones. Add --model" in text


@pytest.mark.slow
def test_the_rows_are_a_random_sample_of_all_of_them(tmp_path, capsys):
    """The easy rows come first in the file, but the mean of the trial is that of the whole file."""
    rows = [{"prompt": f"{number} is", "answer": "x" if number < 500 else "y"} for number in range(2000)]
    (tmp_path / "sorted.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "easy.py").write_text("def easy(completion, answer):\n    return float(answer == 'x')\n")
    _, trial = tried(
        capsys, f"{tmp_path}/easy.py:easy", "--data", f"{tmp_path}/sorted.jsonl", "--model", "tiny:sort",
        "--prompts", "64", "-k", "8", "sampling.max_completion_length=2",
    )  # fmt: skip
    assert (trial["rows"], trial["of_rows"]) == (256, 1800), "a tenth is held out"
    reward = trial["model"]["reward"]
    assert reward["low"] < 0.25 < reward["high"]
    assert reward["high"] < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("value", few(["0.0", "1.0"], "0.0"))
def test_prompts_that_are_nearly_all_too_hard_or_too_easy_speak_against_a_run(config, tmp_path, capsys, value):
    (tmp_path / "few.py").write_text(
        f"def few(prompt, completion):\n    return {value} if prompt[0] > 'b' else len(completion) % 2\n"
    )
    entry = f"rewards=[{{function: {tmp_path}/few.py:few}}]"
    assert command(["reward", "test", str(config), entry, "--prompts", "32", "-k", "8"]) == 0
    said = capsys.readouterr().out
    assert "WARN    prompts in reach" in said
    assert "Nothing speaks against a run" not in said


@pytest.mark.slow
def test_prompt_and_gold_stand_beside_the_answer(config, capsys):
    command(["reward", "test", str(config), "--prompts", "4", "-k", "4"])
    said = capsys.readouterr().out
    assert said.count("  prompt  ") == said.count("    gold    ") == said.count("    answer  ") == 3
    assert "rows     256, drawn at random from " in said


def test_a_reward_alone_needs_data(capsys):
    assert command(["reward", "test", "math"]) == 2
    assert "the reward math without data" in capsys.readouterr().err


def test_what_a_run_would_refuse_is_refused(folder, config):
    from posttrain.config import load_config

    bad = folder / "bad.jsonl"
    bad.write_text("".join(json.dumps(row | {"answer": ""}) + "\n" for row in ROWS))
    loaded = load_config(config, [f"data.train={bad}", "rewards=[{name: math}]"]).config
    with pytest.raises(DataError, match="gold answer"):
        try_config(loaded, folder=folder, with_model=False)
    unknown = load_config(config, ["rewards=[{name: maths}]"]).config
    with pytest.raises(ConfigError, match="maths"):
        try_config(unknown, folder=folder, with_model=False)


@pytest.mark.parametrize(
    ("scores", "k", "expected"),
    [([1, 0, 0, 0], 2, 0.5), ([1, 1, 0, 0], 2, 4 / 6), ([1, 1, 1], 3, 0.0), ([0.5, 0.2, 0.1], 2, 1.0)],
)
def test_the_probability_that_scores_differ(scores, k, expected):
    assert differ_at_k(scores, k) == pytest.approx(expected)


def test_for_right_and_wrong_it_is_pass_at_k_without_all_of_k():
    from posttrain.functional.estimators import pass_at_k, pass_hat_k

    for correct in range(9):
        scores = [1] * correct + [0] * (8 - correct)
        assert differ_at_k(scores, 4) == pytest.approx(pass_at_k(8, correct, 4) - pass_hat_k(8, correct, 4))


@pytest.mark.parametrize(("golds", "found"), [("ab", None), ("a日", "warn"), ("本日", "warn")])
def test_text_and_gold_answers_that_the_tokenizer_cannot_write_are_findings(golds, found):
    tokenizer = build_tokenizer("ab")
    prompts = [Prompt(index=n, ids=(1, 4), text="a", columns={"answer": gold}) for n, gold in enumerate(golds)]
    told = about_unknown(unknown_text(prompts, (), tokenizer))
    assert [(one.check, one.status) for one in told] == ([] if found is None else [("text of gold answers", found)])
    asked = Prompt(index=0, ids=(1, 3), text="日")
    [one] = about_unknown(unknown_text([asked], (), tokenizer))
    assert (one.check, one.status) == ("text of prompts", "warn")
