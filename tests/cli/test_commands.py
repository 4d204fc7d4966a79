"""Every verb: help without torch, one JSON object, settings in any spelling, and an exit code for each outcome."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.catalogue import catalogue

from posttrain import environment
from posttrain.cli import TAKES_SETTINGS, _command
from posttrain.cli.page import cli_page
from posttrain.cli.runs import sort_arguments, split_arguments
from posttrain.errors import ConfigError
from posttrain.tasks import demo

VERBS = (
    "demo", "check", "init", "advise", "plan", "train", "submit", "compare", "sweep", "dash", "track", "resume",
    "replay", "eval", "chat", "explain", "explore", "convert", "data check", "data answers", "reward test",
    "reward audit", "export", "engine install",
)  # fmt: skip


# --- help ------------------------------------------------------------------------------------------------------------


@catalogue("verb", VERBS)
def test_help_has_examples_of_the_verb(posttrain, verb):
    exit_code, out, err = posttrain(*verb.split(), "--help")
    assert exit_code == 0
    assert err == ""
    assert re.search(rf"Examples: *\n +posttrain {verb}", out), out


def command_of(*words: str) -> Any:
    """Return the command of a verb, or the group of all verbs."""
    command = _command()
    for word in words:
        command = command.commands[word]
    return command


def examples_of(*words: str) -> list[str]:
    """Return the examples in the help of a verb, as written."""
    return inspect.cleandoc(command_of(*words).help).partition("Examples:\n")[2].splitlines()


@catalogue("columns", ["40", "80", "200"])
@catalogue("verb", ["", "data", "reward", "engine", *VERBS])
def test_help_cuts_no_name_and_breaks_no_example(posttrain, monkeypatch, verb, columns):
    monkeypatch.setenv("COLUMNS", columns)
    _, out, _ = posttrain(*verb.split(), "--help")
    assert "\u2026" not in out
    command = command_of(*verb.split())
    options = [p for p in command.get_params(typer.Context(command)) if p.param_type_name == "option"]
    for name in (name for option in options for name in (*option.opts, *option.secondary_opts)):
        assert re.search(rf"(?<![\w-]){name}(?![\w-])", out), name
    assert {line.strip() for line in examples_of(*verb.split())} <= {line.strip() for line in out.splitlines()}


@pytest.mark.parametrize("group", ["", "data", "reward", "engine"])
def test_help_says_of_each_verb_what_it_does_in_whole_sentences(posttrain, group):
    _, out, _ = posttrain(*group.split(), "--help")
    said = " ".join(out.split())
    for name, command in command_of(*group.split()).commands.items():
        summary = " ".join(command.help.partition("\n\n")[0].split())
        assert f" {name} {summary}" in said


@catalogue(
    "verb, example", [(verb, example.strip()) for verb in ("", *VERBS) for example in examples_of(*verb.split())]
)
def test_an_example_of_the_help_can_be_typed(verb, example):
    """It may follow a pipe or variables of the environment."""
    typed = re.sub(r"^.* \| |^(\w+=\w+ )+", "", example).replace("VERB --help", "check")
    name, *words = shlex.split(typed)
    assert name == "posttrain"
    command, context = _command(), typer.Context(_command())
    while hasattr(command, "commands"):
        _, command, words = command.resolve_command(context, words)
        context = command.make_context(command.name, words, parent=context)
        words = [*getattr(context, "_protected_args", []), *context.args]
    assert context.command_path.split()[-1] == command.name
    if verb in TAKES_SETTINGS:  # an option that does not exist is taken for a setting first
        arguments = [context.params[p.name] for p in command.params if p.param_type_name == "argument"]
        sort_arguments([one for given in arguments for one in ([given] if isinstance(given, str) else given or [])])


def test_the_example_of_a_plan_with_turns_works_for_the_project_that_the_help_names(posttrain):
    [example] = [one for one in examples_of("plan") if "--mean-turns" in one]
    posttrain("init", "project", "--data", "environment", "-y")
    _, *words = shlex.split(example.replace("my_tools.yaml", "project/config.yaml"))
    assert posttrain(*words)[0] in (0, 3)


def test_no_verb_is_left_out_here():
    assert sorted(VERBS) == sorted(re.findall(r"(?m)^## posttrain (.+)$", cli_page()))


def test_help_lists_every_verb(posttrain):
    exit_code, out, _ = posttrain("--help")
    assert exit_code == 0
    assert all(f" {verb.split()[0]} " in out for verb in VERBS)


def test_the_page_of_the_verbs_is_up_to_date():
    page = Path(__file__).parents[2] / "docs" / "cli.md"
    assert page.read_text() == cli_page(), "python -m posttrain.cli.page > docs/cli.md"


def test_the_setting_that_an_error_names_is_the_option_of_the_verb(posttrain):
    """`model` has a context of 64 tokens."""
    answers = ("data", "answers", "model", "train.jsonl", "-o", "own.jsonl")
    exit_code, _, err = posttrain(*answers, "--max-completion-length", "999")
    assert exit_code == 2
    assert "max_completion_length = 999, but the context is 64 tokens" in err
    assert posttrain(*answers, "--max-completion-length", "8")[0] == 0


NEED_AN_ARGUMENT = (
    "train", "submit", "compare", "sweep", "resume", "replay", "eval", "chat", "convert", "data check", "reward test",
    "export",
)  # fmt: skip


@catalogue("verb", ["", "data", "reward", *NEED_AN_ARGUMENT])
def test_a_verb_without_its_argument_shows_its_help_and_did_not_work(posttrain, verb):
    exit_code, out, _ = posttrain(*verb.split())
    assert exit_code == 2
    assert f"Usage: posttrain {verb}".rstrip() in out


# --- JSON ------------------------------------------------------------------------------------------------------------

COMMANDS = (
    "check",
    "explain",
    "explain grpo",
    "explain correction",
    "explain tis",
    "data check train.jsonl",
    "data check train.jsonl --model model",
    "advise --data pairs",
    "init project -y",
    "plan run.yaml",
    "train run.yaml --dry-run",
    "train run.yaml",
    "eval finished -k 1",
    "chat finished -m ab --max-completion-length 4",
)


@pytest.mark.parametrize(
    "command", [one if one != "train run.yaml" else pytest.param(one, marks=pytest.mark.slow) for one in COMMANDS]
)
def test_json_is_one_object(posttrain, command):
    exit_code, found = posttrain.json(*command.split())
    assert exit_code == 0
    assert isinstance(found, dict)


def test_a_run_says_where_everything_is_and_how_good_it_is_on_stdout_and_its_progress_on_stderr(posttrain):
    exit_code, out, err = posttrain("train", "run.yaml", "--json")
    found = json.loads(out)
    assert exit_code == 0
    assert found["folder"] == "run"
    assert found["steps"] == 2
    assert (Path(found["model_path"]) / "config.json").is_file()
    assert 0 <= found["evaluation"]["trained"]["greedy"]["score"]["mean"] <= 1
    assert found["verdict"] == {"sentence": "No improvement is shown.", "change": 0}
    assert "verdict: No improvement is shown." in err
    assert "step 2/2" in err


def test_what_is_not_finite_is_null_in_the_object(posttrain, place):
    """One pair has a mean difference of lengths, and no interval."""
    (place / "one.jsonl").write_text('{"prompt": "ab", "chosen": "abc", "rejected": "d"}')
    _, out, _ = posttrain("data", "check", "one.jsonl", "--json")

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    found = json.loads(out, parse_constant=refuse)
    assert found["uses"][0]["length_bias"]["difference"]["low"] is None
    assert "+2.0 characters on average (no interval: one pair)" in posttrain("data", "check", "one.jsonl")[1]


@pytest.mark.parametrize(
    ("command", "kind", "expected_code"),
    [
        ("trainx", "UsageError", 2),
        ("eval model --samples -1", "UsageError", 2),
        ("train run.yaml train.steps=0", "ConfigError", 2),
        ("data check missing.jsonl", "DataError", 2),
        ("advise --data nonsense", "ConfigError", 2),
        ("init --data nonsense -y", "ConfigError", 2),
        ("plan missing.yaml", "ConfigError", 2),
        ("compare run.yaml --algorithms grpo", "ConfigError", 2),
        ("sweep run.yaml train.learning_rat=log(1e-5,1e-2)", "ConfigError", 2),
        ("explore --colour", "UsageError", 2),
        ("train run.yaml train.steps=9 guards.no_signal_steps=1 'rewards=[{name: exact_match}]'", "GuardStop", 4),
    ],
)
def test_an_error_is_one_object_too(posttrain, command, kind, expected_code):
    exit_code, found = posttrain.json(*shlex.split(command))
    assert exit_code == expected_code
    assert found["error"]["type"] == kind
    assert found["error"]["exit_code"] == expected_code
    assert found["error"]["message"]


@pytest.mark.slow
def test_what_a_reward_prints_does_not_get_into_the_json(posttrain, place):
    body = "    print('called')\n    return [float(len(text)) for text in completions]\n"
    (place / "rewards.py").write_text(f"print('imported')\n\n\ndef vowels(completions, **columns):\n{body}")
    exit_code, found = posttrain.json("train", "run.yaml")
    assert exit_code == 0
    assert found["steps"] == 2


# --- settings on the command line ------------------------------------------------------------------------------------


@catalogue(
    "settings",
    [
        "train.learning_rate=1e-5 seed=3",
        "--train.learning_rate=1e-5 --seed=3",
        "--train.learning_rate 1e-5 --seed 3",
        "--train.learning-rate 1e-5 seed=3",
    ],
)
@catalogue("first", ["run.yaml", ""])
def test_a_setting_is_the_same_in_every_spelling_and_place(posttrain, settings, first):
    arguments = [*first.split(), *settings.split(), *([] if first else ["run.yaml"])]
    exit_code, found = posttrain.json("train", *arguments, "--dry-run")
    assert exit_code == 0
    assert found["config"]["train"]["learning_rate"] == 1e-5
    assert found["config"]["seed"] == 3
    assert found["origins"]["train.learning_rate"] == found["origins"]["seed"] == "command line"
    assert found["origins"]["train.steps"] == "file:run.yaml"
    assert found["origins"]["train.warmup_steps"] == "default"


def test_a_dry_run_prints_a_config_that_can_be_trained_and_leaves_nothing_behind(posttrain, place):
    before = sorted(place.iterdir())
    command = ("train", "run.yaml", "--dry-run", "--output", "elsewhere: 1")
    _, resolved = posttrain.json(*command)
    exit_code, out, _ = posttrain(*command)
    assert exit_code == 0
    assert sorted(place.iterdir()) == before
    (place / "resolved.yaml").write_text(out)
    _, again = posttrain.json("train", "resolved.yaml", "--dry-run")
    assert again["config"] == resolved["config"]
    assert again["config"]["output"] == "elsewhere: 1"


def test_a_dry_run_checks_the_rules_that_span_sections(posttrain):
    exit_code, _, err = posttrain("train", "run.yaml", "--dry-run", "sampling.group_size=1")
    assert exit_code == 2
    assert "sampling.group_size = 1, but grpo" in err


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ("[{name: mtah}]", "rewards.name = 'mtah', but there is no such reward; did you mean \"math\"?"),
        ("[{name: math, settings: {percnt: either}}]", "reward \"math\" has no setting 'percnt'"),
        ("[{name: regex}]", 'reward "regex" needs settings.pattern'),
    ],
)
def test_a_dry_run_refuses_rewards_that_do_not_exist(posttrain, rewards, message):
    exit_code, _, err = posttrain("train", "run.yaml", "--dry-run", f"rewards={rewards}")
    assert exit_code == 2
    assert message in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no configuration file"),
        (["a.yaml", "b.yaml"], "2 configuration files: a.yaml, b.yaml"),
        (["a.yaml", "--train.steps"], "--train.steps has no value"),
        (["a.yaml", "--train.steps", "--seed", "1"], "--train.steps has no value"),
        (["a.yaml", "--quite", "seed=1"], "--quite is neither an option nor a setting.*Did you mean --quiet"),
        (["a.yaml", "-x"], "-x is neither an option nor a setting"),
    ],
)
def test_what_is_no_setting_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        split_arguments(arguments)


def test_a_value_may_hold_an_equals_sign_and_a_config_file_may_have_one_in_its_name(place):
    (place / "lr=1.yaml").touch()
    assert split_arguments(["lr=1.yaml", "--data.prompt", "{a}={b}"]) == ("lr=1.yaml", ["data.prompt={a}={b}"])


# --- exit codes ------------------------------------------------------------------------------------------------------


def test_a_fault_of_ours_is_exit_code_1_with_its_traceback_and_an_explanation(posttrain, monkeypatch):
    monkeypatch.setattr(environment, "check_environment", lambda: 1 / 0)
    exit_code, out, err = posttrain("check")
    assert exit_code == 1
    assert out == ""
    assert err.startswith("Traceback")
    assert "ZeroDivisionError: division by zero\n  This is a bug in posttrain" in err


def test_an_environment_that_cannot_be_used_is_exit_code_1(posttrain, monkeypatch):
    monkeypatch.setitem(environment.TESTED, "no-such-package", "1.0")
    exit_code, found = posttrain.json("check")
    assert exit_code == 1
    assert found["usable"] is False


def test_data_that_cannot_be_used_is_exit_code_2(posttrain, place):
    (place / "odd.jsonl").write_text('{"query": "ab"}\n')
    exit_code, found = posttrain.json("data", "check", "odd.jsonl")
    assert exit_code == 2
    assert found["usable"] is False


@pytest.mark.slow
def test_a_folder_whose_run_never_began_can_be_used_again(posttrain, place):
    exit_code, _, err = posttrain("train", "run.yaml", "data.train=missing.jsonl")
    assert exit_code == 2
    assert "Nothing was trained. run/error.json has the details; you can use the folder again." in err
    assert (place / "run" / "error.json").is_file()
    assert posttrain("train", "run.yaml")[0] == 0
    assert not (place / "run" / "error.json").exists()


@pytest.mark.slow
def test_a_run_that_failed_half_way_says_where_it_is_and_goes_on_once_it_can(posttrain, place):
    rewards = (place / "rewards.py").read_text()
    (place / "rewards.py").write_text(
        rewards.replace("[sum", "[1 / 0 if len(texts) == 8 else sum").replace(
            "completions, **columns):", "completions, **columns):\n    texts = completions"
        )
    )
    exit_code, _, err = posttrain("train", "run.yaml")
    assert exit_code == 4
    assert "The run is in run; `posttrain resume run` continues it" in err
    (place / "rewards.py").write_text(rewards)
    exit_code, out, _ = posttrain("resume", "run")
    assert exit_code == 0
    assert "run/checkpoints/step-000002/model" in out


@pytest.fixture
def done(good: Path, place: Path) -> Path:
    """A run of run.yaml that is done."""
    return Path(shutil.copytree(good / "finished", place / "run"))


@pytest.mark.slow
def test_more_steps_can_be_asked_for_when_a_run_is_resumed_and_are_kept(posttrain, place, done):
    exit_code, found = posttrain.json("resume", "run", "--steps", "3")
    assert exit_code == 0
    assert found["steps"] == 3
    config = (place / "run" / "config.yaml").read_text()
    assert "  steps: 3  # command line of resume\n" in config
    assert "  learning_rate: 0.001  # file:run.yaml\n" in config, "other origins must stay"
    assert posttrain.json("resume", "run")[1]["steps"] == 3


def test_resuming_a_run_that_is_done_says_so(posttrain, done):
    exit_code, out, _ = posttrain("resume", "run")
    assert exit_code == 0
    assert "all 2 steps are done; `posttrain resume run --steps N` trains more" in out


@pytest.mark.slow
def test_a_run_cannot_be_resumed_to_fewer_steps_than_it_has_done(posttrain, place, done):
    before = (place / "run" / "events.jsonl").read_text()
    exit_code, _, err = posttrain("resume", "run", "--steps", "1")
    assert exit_code == 2
    assert "train.steps = 1, but the run has done 2 steps; allowed: at least 2." in err
    assert (place / "run" / "events.jsonl").read_text() == before
    assert not (place / "run" / "error.json").exists()
    assert posttrain("resume", "run", "--steps", "3")[0] == 0, "the lock must have been released"


def test_every_answer_of_an_evaluation_can_be_kept(posttrain, place):
    exit_code, out, _ = posttrain(
        "eval",
        "model",
        "--data",
        "eval.jsonl",
        "--reward",
        "rewards.py:vowels",
        "-k",
        "2",
        "--max-completion-length",
        "4",
        "--answers",
        "answers.jsonl",
    )
    assert exit_code == 0
    assert "score" in out
    assert len((place / "answers.jsonl").read_text().splitlines()) >= 4


@pytest.mark.parametrize(
    "option",
    [
        *(["-k", "2"], ["--temperature", "0.5"], ["--seed", "1"], ["--max-completion-length", "4"]),
        *(["--answers", "answers.jsonl"], ["--prompt", "question"], ["--answer", "gold"]),
        *(["--reward", "exact_match"], ["--check", "exact_match"], ["rollout.engine=vllm"]),
    ],
)
def test_what_a_measurement_on_given_answers_would_ignore_is_refused(posttrain, place, option):
    exit_code, _, err = posttrain("eval", "model", "--data", "eval.jsonl", "--as", "examples", *option)
    assert exit_code == 2
    assert "but a measurement on given answers samples nothing" in err
    assert not (place / "answers.jsonl").exists()


@pytest.mark.slow
def test_a_demo_that_shows_no_improvement_says_so_on_stderr_and_exits_with_4(posttrain, monkeypatch):
    """Two steps are too few. Exit code 0 means that the demonstration shows an improvement."""
    whole = demo.demo_config
    monkeypatch.setattr(demo, "demo_config", lambda **settings: whole(**settings, steps=2))
    exit_code, _, err = posttrain("demo", "--output", "demo", "--quiet", "--json")
    assert exit_code == 4
    assert "before" in err
    assert "after" in err
    assert "the demonstration shows no improvement" in err
