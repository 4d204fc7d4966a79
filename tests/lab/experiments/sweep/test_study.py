"""Trials in a real study with real files: their results survive any end of the process."""

from __future__ import annotations

import builtins
import json
import random
import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from posttrain.config import check, load_config
from posttrain.errors import ConfigError
from posttrain.lab.experiments.children import ChildResult
from posttrain.lab.experiments.sweep.api import alone_in, announcement, best_config_text, settings_for, sweep
from posttrain.lab.experiments.sweep.knobs import parse_knob
from posttrain.lab.experiments.sweep.settings import read_settings, with_values
from posttrain.lab.experiments.sweep.study import BEFORE_PRUNING, TrialRecord, open_study, records
from posttrain.lab.experiments.sweep.trials import TrialTask, read_course, trial_tasks

pytest.importorskip("optuna", reason="the extra `sweep` is not installed")

KNOBS = (parse_knob("train.learning_rate=log(1e-5,1e-2)"), parse_knob("algorithm.kl_coef=choice(0,0.1)"))
DEFAULT = {"train.learning_rate": 1e-3, "algorithm.kl_coef": 0.0}
BASE = {
    "model": {"path": "tiny:sort"},
    "algorithm": {"name": "grpo"},
    "data": {"train": "task:sort"},
    "rewards": [{"name": "exact_match"}],
    "train": {"steps": 8, "learning_rate": 1e-3},
}


class Stopped:
    """A process that obeys a request to stop."""

    asked = False

    def ask_to_stop(self) -> None:
        self.asked = True


def study_in(folder: Path, pruner="median"):
    return open_study(folder / "study.db", pruner=pruner, seed=0, steps=8)


def tasks_in(folder: Path, study, trials: int, said: list[str] | None = None, base=BASE):
    say = (said if said is not None else []).append
    return trial_tasks(
        study, KNOBS, base, trials=trials, folder=folder / "trials", environment={}, default=DEFAULT, say=say
    )


def write_run(folder: Path, scores: list[float], *, ended: bool = True, n: int = 256, **error) -> None:
    """Write the files of a run that measured these scores. The first score is from before training."""
    folder.mkdir(parents=True, exist_ok=True)
    events = [
        {
            "kind": "evaluation",
            "step": 2 * number,
            "evaluation": {"greedy": {"score": {"mean": s, "low": s - 0.05, "high": s + 0.05, "n": n}}},
        }
        for number, s in enumerate(scores)
    ]
    if ended:
        events.append({"kind": "error" if error else "end"})
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    if error:
        (folder / "error.json").write_text(json.dumps(error))


def finish(task: TrialTask, scores: list[float], exit_code: int = 0) -> None:
    write_run(task.folder, scores)
    task.ended(ChildResult(folder=task.folder, exit_code=exit_code, seconds=1.0))


@pytest.mark.slow
def test_the_first_trial_is_the_default_and_each_of_them_has_its_own_values(tmp_path):
    study = study_in(tmp_path)
    tasks = list(tasks_in(tmp_path, study, 4))
    assert [task.folder.name for task in tasks] == [f"trial-{n:03d}" for n in range(4)]
    for task in tasks:
        finish(task, [0.2, 0.5])
    found = records(study, KNOBS)
    assert found[0].values == DEFAULT
    assert [trial.is_default for trial in found] == [True, False, False, False]
    assert len({trial.values["train.learning_rate"] for trial in found}) == 4
    assert tasks[1].settings["train"]["learning_rate"] == found[1].values["train.learning_rate"]


@pytest.mark.slow
def test_a_trial_whose_process_was_killed_is_gone_on_with_under_its_own_values(tmp_path):
    study = study_in(tmp_path)
    first = next(iter(tasks_in(tmp_path, study, 3)))
    write_run(first.folder, [0.2, 0.4], ended=False)
    del study
    again = study_in(tmp_path)
    tasks = list(tasks_in(tmp_path, again, 3))
    assert [task.trial.number for task in tasks] == [0, 1, 2]
    assert tasks[0].settings == first.settings
    assert [trial.outcome for trial in records(again, KNOBS)] == ["running"] * 3


@pytest.mark.slow
def test_a_trial_that_ended_while_nobody_looked_is_read_from_its_files_and_not_run_again(tmp_path):
    study = study_in(tmp_path)
    tasks = list(tasks_in(tmp_path, study, 3))
    write_run(tasks[0].folder, [0.2, 0.6])
    write_run(tasks[1].folder, [0.2, 0.3], type="GuardStop", message="step 3: no signal\nmore", exit_code=4)
    write_run(tasks[2].folder, [0.2], type="DataError", message="no such file", exit_code=2)
    assert [task.start() for task in tasks] == [None, None, None]
    found = records(study, KNOBS)
    assert [trial.outcome for trial in found] == ["finished", "collapsed", "failed"]
    assert [trial.score for trial in found] == [0.6, 0.3, None]
    assert found[1].reason == "GuardStop: step 3: no signal"
    assert found[2].reason == "DataError: no such file"


@pytest.mark.slow
def test_the_same_settings_are_not_run_twice(tmp_path):
    study, said = study_in(tmp_path), []
    first, second = tasks_in(tmp_path, study, 2, said)
    finish(first, [0.2, 0.6])
    study.enqueue_trial(dict(first.trial.params))
    finish(second, [0.2, 0.5])
    (third,) = tasks_in(tmp_path, study, 3, said)
    assert third.start() is None
    found = records(study, KNOBS)[2]
    assert (found.outcome, found.score, found.values) == ("finished", 0.6, DEFAULT)
    assert found.reason == "the same settings as trial 0"


def test_a_run_that_was_interrupted_is_not_over(tmp_path):
    write_run(tmp_path / "run", [0.2, 0.4], type="KeyboardInterrupt", message="stopped after step 3", exit_code=1)
    assert read_course(tmp_path / "run").state == "unfinished"


@pytest.mark.slow
def test_settings_that_cannot_go_together_fail_the_trial_with_their_reason_and_no_process(tmp_path):
    study, said = study_in(tmp_path), []
    base = {**BASE, "sampling": {"group_size": 1}}
    task = next(iter(tasks_in(tmp_path, study, 1, said, base)))
    assert task.start() is None
    (found,) = records(study, KNOBS)
    assert found.outcome == "failed"
    assert "sampling.group_size = 1" in found.reason
    assert said[0].startswith("trial 0 failed")


def test_a_trial_that_ends_shown_to_be_worse_than_it_began_has_collapsed(tmp_path):
    study = study_in(tmp_path)
    worse, unsure = tasks_in(tmp_path, study, 2)
    finish(worse, [0.3, 0.35, 0.1])
    finish(unsure, [0.3, 0.35, 0.25])
    assert [trial.outcome for trial in records(study, KNOBS)] == ["collapsed", "finished"]


@pytest.mark.slow
def test_a_trial_that_falls_behind_is_asked_to_stop_and_counts_as_pruned(tmp_path):
    study = study_in(tmp_path)
    *before, last = tasks_in(tmp_path, study, 6)
    for task in before:
        finish(task, [0.2, 0.5, 0.7])
    process = Stopped()
    write_run(last.folder, [0.2], ended=False)
    last.look(process)
    assert not process.asked
    write_run(last.folder, [0.2, 0.3], ended=False)
    last.look(process)
    assert process.asked
    last.ended(ChildResult(folder=last.folder, exit_code=1, seconds=1.0))
    found = records(study, KNOBS)[-1]
    assert (found.outcome, found.score, found.step) == ("pruned", 0.3, 2)


@pytest.mark.slow
def test_the_median_is_of_as_few_trials_as_rarely_stop_one_of_the_best_quarter():
    dice, times = random.Random(0), 20_000
    normal = statistics.NormalDist()

    def stopped(others: int) -> float:
        """Return the share of the best quarter that is below the median of `others` trials."""
        scores = (normal.inv_cdf(dice.uniform(0.75, 1.0)) for _ in range(times))
        return sum(score < statistics.median(dice.gauss() for _ in range(others)) for score in scores) / times

    shares = {others: stopped(others) for others in range(1, BEFORE_PRUNING + 1)}
    assert shares[BEFORE_PRUNING] == pytest.approx(0.03, abs=0.005)
    assert shares[1] == pytest.approx(0.125, abs=0.01)
    assert min(others for others, share in shares.items() if share < 0.05) == BEFORE_PRUNING


@pytest.mark.slow
def test_without_a_pruner_nothing_is_stopped(tmp_path):
    study = study_in(tmp_path, pruner="none")
    *before, last = tasks_in(tmp_path, study, 6)
    for task in before:
        finish(task, [0.2, 0.5, 0.7])
    process = Stopped()
    write_run(last.folder, [0.2, 0.21], ended=False)
    last.look(process)
    assert not process.asked


@pytest.mark.slow
def test_of_a_loss_the_lowest_is_best(tmp_path):
    study = study_in(tmp_path)
    for task, loss in zip(tasks_in(tmp_path, study, 3), (2.0, 1.0, 1.5), strict=True):
        task.folder.mkdir(parents=True)
        events = [
            {"kind": "evaluation", "step": step, "evaluation": {"loss": {"mean": v, "low": v, "high": v, "n": 9}}}
            for step, v in ((0, 3.0), (8, loss))
        ]
        (task.folder / "events.jsonl").write_text("\n".join(map(json.dumps, [*events, {"kind": "end"}])))
        assert task.start() is None
    assert study.best_trial.number == 1
    assert records(study, KNOBS)[1].score == 1.0


@pytest.mark.parametrize("own", [None, "prompts", "rows"])
@pytest.mark.parametrize("earlier", [True, False])
def test_new_trials_hold_out_rows_as_the_sweep_began(tmp_path, own, earlier):
    """An earlier version did not save `hold_out`, and held out single rows."""
    base = BASE if own is None else {**BASE, "data": {**BASE["data"], "hold_out": own}}
    knobs = ["train.learning_rate=log(1e-5,1e-2)"]
    settings_for(base, knobs, (), tmp_path, trials=3, pruner=None, seeds=None)[0].keep(tmp_path)
    if earlier:
        saved = json.loads((tmp_path / "sweep.json").read_text())
        del saved["hold_out"]
        (tmp_path / "sweep.json").write_text(json.dumps(saved))
    then = own or ("rows" if earlier else "prompts")
    explicit = {**BASE, "data": {**BASE["data"], "hold_out": then}}  # as in the saved config of a run
    by_folder, by_command, by_explicit = (tmp_path, (), None), (base, knobs, tmp_path), (explicit, knobs, tmp_path)
    for source, turned, folder in (by_command, by_folder, by_command, by_explicit, by_folder, by_command):
        again, _ = settings_for(source, turned, (), folder, trials=9, pruner=None, seeds=None)
        again.keep(tmp_path)
        best = TrialRecord(number=0, values={}, outcome="finished", score=1.0)
        said = best_config_text(SimpleNamespace(settings=again, folder=tmp_path, sentences=list), best)
        assert [load_config(one).config.data.hold_out for one in (again.base, yaml.safe_load(said))] == [then] * 2
    other = {**BASE, "data": {**BASE["data"], "hold_out": "rows" if then == "prompts" else "prompts"}}
    with pytest.raises(ConfigError, match="holds a sweep with other base"):
        settings_for(other, knobs, (), tmp_path, trials=9, pruner=None, seeds=None)[0].keep(tmp_path)


def test_a_sweep_goes_on_only_with_what_it_began_with(tmp_path):
    knobs = ["train.learning_rate=log(1e-5,1e-2)"]
    settings, _ = settings_for(BASE, knobs, (), tmp_path, trials=3, pruner=None, seeds=None)
    settings.keep(tmp_path)
    assert read_settings(tmp_path) == settings
    more, _ = settings_for(tmp_path, (), (), None, trials=9, pruner=None, seeds=None)
    more.keep(tmp_path)
    assert more.trials == 9
    other, _ = settings_for(
        BASE, ["train.learning_rate=log(1e-4,1e-2)"], (), tmp_path, trials=3, pruner=None, seeds=None
    )
    with pytest.raises(
        ConfigError, match=r"holds a sweep with other knobs; .*\n  `posttrain sweep .*` continues that sweep"
    ):
        other.keep(tmp_path)
    with pytest.raises(ConfigError, match="a sweep, and other settings"):
        settings_for(tmp_path, knobs, (), None)


def test_a_file_with_knobs_says_everything(tmp_path):
    (tmp_path / "base.yaml").write_text(json.dumps(BASE))
    file = tmp_path / "knobs.yaml"
    file.write_text("base: base.yaml\nknobs: {algorithm.kl_coef: 'choice(0, 0.1)'}\ntrials: 7\n")
    settings, folder = settings_for(file, (), ["train.steps=4"], None, trials=None, pruner="none", seeds=None)
    assert (settings.trials, settings.pruner, settings.config.train.steps) == (7, "none", 4)
    assert folder == Path("sweeps/knobs")
    file.write_text("base: base.yaml\nknobs: {algorithm.kl_coef: 'choice(0, 0.1)'}\nsteps: 7\n")
    with pytest.raises(ConfigError, match="steps in a file with knobs"):
        settings_for(file, (), (), None)


def test_a_pipeline_is_no_config_of_one_run():
    with pytest.raises(ConfigError, match="a pipeline with stages"):
        settings_for({**BASE, "stages": []}, ["train.learning_rate=log(1e-5,1e-2)"], (), None)


def test_two_processes_do_not_work_at_one_sweep(tmp_path):
    with (
        alone_in(tmp_path),
        pytest.raises(ConfigError, match="another process is running this sweep"),
        alone_in(tmp_path),
    ):
        pass
    with alone_in(tmp_path):
        pass


def test_without_optuna_the_error_says_what_to_install(monkeypatch, tmp_path):
    real = builtins.__import__

    def without(name, *rest, **more):
        if name.partition(".")[0] == "optuna":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r'needs optuna.*\n  pip install "posttrain\[sweep\]"'):
        sweep(BASE, ["train.learning_rate=log(1e-5,1e-2)"], folder=tmp_path)


def test_a_record_is_plain(tmp_path):
    study = study_in(tmp_path)
    finish(next(iter(tasks_in(tmp_path, study, 1))), [0.2, 0.5])
    (found,) = records(study, KNOBS)
    assert found == TrialRecord(
        number=0,
        values=DEFAULT,
        outcome="finished",
        step=2,
        score=0.5,
        low=pytest.approx(0.45),
        high=0.55,
        course=((0, 0.2), (2, 0.5)),
        is_default=True,
    )


def test_fewer_steps_shorten_the_warm_up_that_the_config_asks_for():
    """`sweep config.yaml train.steps=8` on a project of `init`, which warms up for 10 of 100 steps."""
    base = BASE | {"train": {"steps": 100, "warmup_steps": 10}}
    knobs = ["train.learning_rate=log(1e-5,1e-2)"]
    for overrides, steps, warmup in (
        ([], 100, 10),
        (["train.steps=8"], 8, 0),
        (["train.steps=50"], 50, 5),
        ({"train.steps": 50}, 50, 5),
        (["train.steps=50", "train.warmup_steps=7"], 50, 7),
    ):
        settings, _ = settings_for(base, knobs, overrides, None)
        train = settings.config.train
        assert (train.steps, train.warmup_steps) == (steps, warmup), overrides
        check(settings.config)
    assert with_values(base, {"train.steps": 20})["train"] == {"steps": 20, "warmup_steps": 2}


def test_all_runs_are_announced_before_the_first():
    settings, _ = settings_for(BASE, ["train.learning_rate=log(1e-5,1e-2)"], (), None, trials=4, seeds=5)
    said = announcement(settings)
    assert said.startswith("4 trials of at most 8 steps, then 10 runs on fresh seeds (--seeds 0 skips them)")
    assert "on this machine, as planned" in said
    few, _ = settings_for(BASE, ["train.learning_rate=log(1e-5,1e-2)"], (), None, trials=4, seeds=0)
    assert "fresh seeds" not in announcement(few)


def test_a_sweep_says_before_it_runs_that_no_trial_is_the_unchanged_config():
    """The learning rate of the config is 0.001; a logarithmic range has no 0."""
    knobs = ["train.learning_rate=log(1e-6,1e-5)", "algorithm.kl_coef=log(0.01,0.1)", "train.steps=int(2,8)"]
    outside, _ = settings_for(BASE, knobs, (), None)
    said = outside.default_left_out
    assert said.startswith("No trial is the unchanged config: train.learning_rate = ")
    assert "is not in log(1.0e-06, 1.0e-05), algorithm.kl_coef = 0.0 is not in log(0.01, 0.1)." in said
    assert announcement(outside).endswith(f"\n{said}")
    inside, _ = settings_for(BASE, ["train.learning_rate=log(1e-5,1)"], (), None)
    assert inside.default_left_out == ""
    assert "\n" not in announcement(inside)
