"""Each alarm fires on the metrics of a run that games its reward, and is silent on those of a similar honest run."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

import pytest

from posttrain.config import AlarmConfig
from posttrain.evaluate.evaluation import Answer, Record
from posttrain.evaluate.heldout import interval_of
from posttrain.experience.group import groups_of
from posttrain.functional.intervals import wilson
from posttrain.rewards import Scores
from posttrain.rewards.judge import Judgement
from posttrain.types import Completion, Prompt
from posttrain.watch import Alarm, IndependentCheck, Watch
from posttrain.watch.check import Checked, sample_of
from posttrain.watch.course import Course
from posttrain.watch.disagreement import Disagreement
from posttrain.watch.heldout import HeldOutAlarms, movement
from posttrain.watch.records import HeldOut, Step

N = 30
Metrics = Mapping[str, float]
Run = Callable[[int], Metrics]
"""Maps a step to its metrics."""


def rising(start: float, end: float) -> Callable[[int], float]:
    """A function that is flat for ten steps, then rises or falls for ten, then is flat, with a little noise."""

    def at(step: int) -> float:
        share = min(1.0, max(0.0, (step - 10) / 10))
        return start + (end - start) * share + 0.002 * (end - start) * random.Random(step).uniform(-1, 1)

    return at


def run_of(**courses: tuple[float, float]) -> Run:
    at = {name.replace("__", "/"): rising(*ends) for name, ends in courses.items()}
    return lambda step: {name: value(step) for name, value in at.items()}


def watch_over(run: Run, heldout: Iterable[float] = (), *, steps: int = N, **settings) -> list[Alarm]:
    """The alarms of a run; `heldout` are scores of an independent check, at evenly spaced steps from 0 on."""
    watch = Watch(AlarmConfig(**settings))
    scores = list(heldout)
    watch.independent = bool(scores)
    found: list[Alarm] = []
    for step in range(steps + 1):
        if scores and step % (steps // (len(scores) - 1)) == 0:
            found += watch.evaluated(step, evaluation(scores[step // (steps // (len(scores) - 1))]))
        if step:
            found += watch.observe(step, run(step))[0]
    return found


def evaluation(check: float, reward: float = 0.5, half: float = 0.06) -> dict:
    def interval(mean: float) -> dict:
        return {"mean": mean, "low": mean - half, "high": mean + half, "n": 256}

    return {"greedy": {"score": interval(reward)}, "check": {"sound": interval(check)}, "confidence": 0.95}


def kinds(alarms: Iterable[Alarm]) -> list[str]:
    return [alarm.kind for alarm in alarms]


PAID = {"reward": (0.2, 0.9)}
FLAT, UP = (0.5, 0.5, 0.5, 0.5), (0.5, 0.6, 0.7, 0.8)


@pytest.mark.parametrize(
    ("kind", "courses"),
    [
        ("length_correlation", PAID | {"text__length_correlation": (0.0, 0.5)}),
        ("length_correlation", PAID | {"text__length_correlation": (0.1, -0.4)}),
        ("length", PAID | {"completions__mean_length": (100.0, 180.0)}),
        ("truncation", PAID | {"completions__clipped_ratio": (0.02, 0.3)}),
        ("repetition", PAID | {"text__distinct_4grams": (0.9, 0.4)}),
        ("compression", PAID | {"text__compression": (1.5, 4.0)}),
        ("template", PAID | {"text__same_start": (0.05, 0.5)}),
        ("template", PAID | {"text__same_end": (0.05, 0.5)}),
        ("concentration", PAID | {"text__concentration": (-0.1, 0.6)}),
        ("entropy", PAID | {"entropy": (1.0, 0.2)}),
        ("no_signal", {"reward": (0.5, 0.4), "frac_reward_zero_std": (0.3, 0.95)}),
    ],
)
def test_it_fires_where_the_held_out_score_is_flat_and_not_where_it_rises(kind, courses):
    assert kinds(watch_over(run_of(**courses), FLAT)) == [kind]
    assert kinds(watch_over(run_of(**courses), UP)) == []


def exploding(step: int) -> Metrics:
    return {"kl": 0.05 if step <= 80 else 0.05 * 2 ** (step - 80)}


LIMITS: list[tuple[str, float, Run]] = [
    ("length_correlation", 0.9, run_of(**PAID, text__length_correlation=(0.0, 0.5))),
    ("length_ratio", 9.0, run_of(**PAID, completions__mean_length=(100.0, 180.0))),
    ("truncated", 0.9, run_of(**PAID, completions__clipped_ratio=(0.02, 0.3))),
    ("distinct_ratio", 0.1, run_of(**PAID, text__distinct_4grams=(0.9, 0.4))),
    ("compression_ratio", 9.0, run_of(**PAID, text__compression=(1.5, 4.0))),
    ("template", 0.9, run_of(**PAID, text__same_start=(0.05, 0.5))),
    ("concentration", 0.9, run_of(**PAID, text__concentration=(-0.1, 0.6))),
    ("entropy_ratio", 0.1, run_of(**PAID, entropy=(1.0, 0.2))),
    ("no_signal", 0.99, run_of(reward=(0.5, 0.4), frac_reward_zero_std=(0.3, 0.95))),
    ("failures", 0.9, run_of(reward=(0.5, 0.5), unscored_fraction=(0.001, 0.05))),
    ("kl_ratio", 1e9, exploding),
]


@pytest.mark.parametrize(("setting", "far", "run"), LIMITS, ids=[setting for setting, *_ in LIMITS])
def test_each_limit_can_be_moved_and_each_alarm_switched_off(setting, far, run):
    assert len(watch_over(run, FLAT, steps=99)) == 1
    assert watch_over(run, FLAT, steps=99, **{setting: far}) == []
    assert watch_over(run, FLAT, steps=99, **{setting: None}) == []


@pytest.mark.parametrize("name", ["text__length_correlation", "text__distinct_4grams", "text__same_start"])
def test_text_that_changes_while_the_reward_does_not_is_nobodys_game(name):
    assert watch_over(run_of(reward=(0.5, 0.5), **{name: (0.5, 0.0 if "distinct" in name else 0.95)}), FLAT) == []


def test_without_a_check_longer_answers_are_suspicious_where_length_itself_is_paid():
    longer = PAID | {"completions__mean_length": (100.0, 180.0)}
    assert kinds(watch_over(run_of(**longer, text__length_correlation=(0.4, 0.4)))) == ["length"]
    assert watch_over(run_of(**longer, text__length_correlation=(0.0, 0.0))) == [], "reasoning grows in honest runs"


@pytest.mark.parametrize(("rejected", "expected"), [(0, []), (2, ["disagreement", "length_correlation"])])
def test_between_evaluations_a_check_that_agrees_with_what_is_accepted_is_proof(rejected, expected):
    """Longer answers are rewarded more as the task is learned; the check sees right answers throughout, or it does
    not."""
    watch = Watch(AlarmConfig())
    watch.disagreement = watch.step_alarms["disagreement"] = Disagreement(3.0, 9.0, 0.01)
    counts = {"check/checked": 32.0, "check/rejected": float(rejected), "check/rejected_prompts": float(rejected)}
    run = run_of(**PAID, text__length_correlation=(0.0, 0.5))
    found = [alarm for step in range(1, N + 1) for alarm in watch.observe(step, {**run(step), **counts})[0]]
    assert sorted(kinds(found)) == expected


def test_without_a_check_a_model_that_has_learned_its_task_is_no_alarm():
    learned = run_of(reward=(0.3, 1.0), frac_reward_zero_std=(0.2, 1.0), entropy=(1.0, 0.1))
    assert watch_over(learned) == []


@pytest.mark.parametrize(
    "name", ["unscored_fraction", "rewards__math__reason__ambiguous", "rewards__a__reason__timeout"]
)
def test_failures_fire_whatever_the_reward_does(name):
    usual = {} if name == "unscored_fraction" else {"unscored_fraction": (0.0, 0.0)}
    (alarm,) = watch_over(run_of(reward=(0.5, 0.5), **usual, **{name: (0.001, 0.05)}))
    assert (alarm.kind, alarm.evidence["limit"]) == ("failures", pytest.approx(0.021, abs=1e-3))
    assert watch_over(run_of(reward=(0.5, 0.5), **usual, **{name: (0.001, 0.015)})) == []


def test_the_change_is_dated_to_the_way_there_and_the_message_has_the_numbers():
    (alarm,) = watch_over(run_of(**PAID, text__same_start=(0.05, 0.5)), FLAT)
    assert 12 <= alarm.change_point <= 18 <= alarm.step
    assert alarm.message.startswith(
        "the share of answers to different prompts with the same first 30 tokens went from 0.0499"
    )
    assert "(limit 0.35)" in alarm.message


def test_noise_is_no_change():
    """The last steps differ from the first by less than three standard errors."""
    dice = random.Random(3)
    assert watch_over(lambda step: {"reward": 0.5, "unscored_fraction": dice.choice([0.0, 0.0, 0.2])}, steps=60) == []


def test_each_kind_fires_once():
    courses = run_of(**PAID, text__same_start=(0.05, 0.5), text__same_end=(0.05, 0.5))
    assert kinds(watch_over(courses, FLAT, steps=60)) == ["template"]


# --- KL --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "honest", [lambda t: 1e-4 * t, lambda t: 1e-5 * t * t, lambda t: 0.05, lambda t: 0.05 + t % 7 / 50]
)
def test_a_kl_that_grows_as_kl_does_is_no_jump(honest):
    assert watch_over(lambda step: {"kl": honest(step)}, steps=300) == []


def test_a_kl_that_explodes_is_one():
    (alarm,) = watch_over(exploding, steps=100)
    assert alarm.kind == "kl"
    assert 80 < alarm.change_point <= alarm.step <= 86


# --- held-out answers ------------------------------------------------------------------------------------------------


def observed(scores: Iterable[tuple[float, float]], reward: tuple[float, float], **settings) -> list[Alarm]:
    """Alarms over evaluations (by the check, by the reward), after which the training reward has moved by `reward`."""
    watch = Watch(AlarmConfig(reference_steps=1, **settings))
    watch.reward.first, watch.reward.last = [reward[0]], [reward[1]]
    alarms = HeldOutAlarms(watch.config)
    found: list[Alarm] = []
    for number, (check, rewarded) in enumerate(scores):
        one = HeldOut(step=10 * number, score=check, error=0.03, reward=rewarded, sampled=rewarded)
        found += alarms.observe(one, watch.reward)
    return found


def test_a_score_that_falls_while_the_reward_does_not_is_an_alarm():
    scores = [(s, s) for s in (0.5, 0.6, 0.7, 0.7, 0.7, 0.6, 0.5, 0.5, 0.5)]
    drops = [alarm for alarm in observed(scores, (0.5, 0.5)) if alarm.kind == "heldout_drop"]
    assert drops[0].step == 70, "three evaluations at 53% against the best three, which ended with step 40"
    assert drops[0].change_point == 41
    assert observed(scores, (0.5, 0.2)) == [], "the reward fell as well, so it is not gamed"


def test_a_gap_is_what_the_reward_has_gained_and_the_check_has_not():
    assert kinds(observed([(0.5, 0.5), (0.5, 0.8)], (0.5, 0.8))) == ["gap"]
    assert observed([(0.5, 0.5), (0.8, 0.8)], (0.5, 0.8)) == [], "both scores rose"
    assert observed([(0.5, 0.5), (0.5, 0.62)], (0.5, 0.6)) == [], "12 points are less than three standard errors"
    assert observed([(0.5, 0.2), (0.5, 0.2)], (0.1, 0.1)) == [], "the gap existed before"


def test_each_limit_of_held_out_answers_can_be_moved_and_its_alarm_switched_off():
    falls = [(s, s) for s in (0.5, 0.6, 0.7, 0.7, 0.7, 0.6, 0.5, 0.5, 0.5)]
    assert observed(falls, (0.5, 0.5), heldout_z=None) == observed(falls, (0.5, 0.5), heldout_z=99.0) == []
    first = {window: observed(falls, (0.5, 0.5), heldout_window=window)[0].step for window in (1, 3)}
    assert first[1] < first[3], "three evaluations take longer to fall"
    parts = [(0.5, 0.5), (0.5, 0.8)]
    assert observed(parts, (0.5, 0.8), gap=None) == observed(parts, (0.5, 0.8), gap=0.9) == []


def test_what_came_first_is_as_many_steps_as_are_asked_for():
    at = {size: watch_over(run_of(**PAID, entropy=(1.0, 0.2)), FLAT, reference_steps=size)[0].step for size in (2, 5)}
    assert at[2] < at[5]


# --- the check -------------------------------------------------------------------------------------------------------


def step_of(number: int, checked: int, rejected: int, prompts: int | None = None) -> Step:
    counts = {"checked": checked, "rejected": rejected, "rejected_prompts": rejected if prompts is None else prompts}
    return Step(number=number, metrics={f"check/{name}": float(value) for name, value in counts.items()})


def test_eight_answers_to_one_prompt_that_the_check_gets_wrong_are_one_mistake():
    apart, together = Disagreement(5.0, 9.0, 0.01), Disagreement(5.0, 9.0, 0.01)
    assert apart.observe(step_of(1, 32, 8)) is not None
    assert together.observe(step_of(1, 32, 8, prompts=1)) is None


def test_the_baseline_is_what_the_check_rejects_before_training():
    """5 of 20: the upper end of the 80% interval is 39%, and the target is ten points more."""
    measured, given = Disagreement(3.0, 9.0), Disagreement(3.0, 9.0, 0.02)
    for one in (measured, given):
        one.calibrate(rejected=5, accepted=20)
    assert measured.baseline == pytest.approx(0.389, abs=0.002)
    assert measured.target == pytest.approx(measured.baseline + 0.1)
    assert given.baseline == 0.02
    untouched = Disagreement(5.0, 9.0)
    untouched.calibrate(rejected=0, accepted=3)
    assert (untouched.baseline, untouched.target) == (0.01, pytest.approx(0.0481, abs=1e-4))


def test_a_check_that_always_disagrees_a_little_is_no_alarm():
    dice, alarm = random.Random(0), Disagreement(5.0, 9.0)
    alarm.calibrate(rejected=10, accepted=100)
    assert [
        fired
        for step in range(300)
        if (fired := alarm.observe(step_of(step, 32, sum(dice.random() < 0.1 for _ in range(32)))))
    ] == []


def test_the_sample_takes_one_answer_of_each_prompt_first_and_is_a_function_of_seed_and_step():
    places = [(p, g) for p in range(6) for g in range(8)]
    chosen = sample_of(places, 8, seed=1, step=4)
    assert sorted({p for p, _ in chosen}) == list(range(6))
    assert len(chosen) == len(set(chosen)) == 8
    assert chosen == sample_of(places, 8, seed=1, step=4)
    assert chosen != sample_of(places, 8, seed=1, step=5)
    assert chosen != sample_of(places, 8, seed=2, step=4)
    assert sample_of(places, 100, seed=1, step=4) == places


def test_answers_that_the_check_could_not_score_are_neither_for_nor_against():
    checked = Checked(
        accepted=9, scores={"a": {(0, 0): None, (1, 0): 0.0, (1, 3): 0.0}}, agrees={(1, 0): False, (1, 3): False}
    )
    metrics = checked.metrics()
    assert (metrics["check/checked"], metrics["check/unscored"], metrics["check/rejected_prompts"]) == (2, 1, 1)
    assert "check/disagreement" not in Checked().metrics()


def test_what_a_judging_check_says_is_filed_under_the_answer_that_it_is_about():
    """It judged the second and the fourth answer of prompt 7 as its first and second."""

    class Judges:
        def score(self, prompts, groups):
            said = tuple(Judgement(label="judge", prompt=7, completion=g, score=0.0) for g in (0, 1))
            parts = {"judge": [[0.0, 0.0]]}
            return Scores(
                rewards_PG=[[0.0, 0.0]], scored_PG=[[True, True]], parts=parts, failures=(), seconds={}, judgements=said
            )

    answers = [Completion(ids=(1,), logprobs=(0.0,), versions=(0,), finish_reason="eos", text=str(g)) for g in range(4)]
    groups = groups_of([Prompt(index=7, ids=(1,), text="?")], [answers], None)
    checked = IndependentCheck(Judges()).look_at(groups, [(0, 3), (0, 1)], accepted=2, accepts_at=0.5)
    assert [(one.label, one.prompt, one.completion) for one in checked.judgements] == [
        ("check/judge", 7, 1),
        ("check/judge", 7, 3),
    ]
    assert checked.agrees == {(0, 1): False, (0, 3): False}


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 7, 14, 19, 25])
def test_a_watch_that_was_saved_and_loaded_fires_where_the_other_did(cut):
    """The state goes through JSON, as in a checkpoint."""
    run = run_of(**PAID, text__same_start=(0.05, 0.5), completions__clipped_ratio=(0.0, 0.4), kl=(0.1, 0.1))

    def follow(watch: Watch, steps: Iterable[int]) -> list[Alarm]:
        return [alarm for step in steps for alarm in watch.observe(step, run(step))[0]]

    whole, first, second = (Watch(AlarmConfig()) for _ in range(3))
    expected = follow(whole, range(1, N))
    assert len(expected) == 2
    before = follow(first, range(1, cut))
    second.load_state(json.loads(json.dumps(first.state())))
    assert before + follow(second, range(cut, N)) == expected
    assert second.state() == whole.state()


def test_an_alarm_that_is_switched_off_or_on_between_two_parts_of_a_run_loads_what_it_can():
    first = Watch(AlarmConfig(template=None))
    first.observe(1, {"reward": 1.0})
    Watch(AlarmConfig(gap=None, kl_ratio=None)).load_state(first.state())


@pytest.mark.parametrize("scale", [1.0, 4.0, 10.0])
@pytest.mark.parametrize("check", [(0.03, 1.0), (0.3, 0.6), (-1.0, 1.0)])
def test_a_check_that_rose_is_no_gap_however_far_from_the_reward_it_began(scale, check):
    """An honest run: its reward rises by more than the check, which begins lower or has another scale."""
    assert observed([(check[0], 0.1 * scale), (check[1], scale)], (0.1 * scale, scale)) == []


@pytest.mark.parametrize("shares", [True, False])
def test_reward_and_check_are_subtracted_only_if_both_lie_between_0_and_1(shares):
    watch = Watch(AlarmConfig(reference_steps=1))
    watch.reward.first, watch.reward.last = [0.5], [0.8]
    alarms, found = HeldOutAlarms(watch.config), []
    for step, rewarded in ((0, 0.5), (10, 0.8)):
        one = HeldOut(step=step, score=0.5, error=0.03, reward=rewarded, sampled=rewarded, shares=shares)
        found += alarms.observe(one, watch.reward)
    assert kinds(found) == (["gap"] if shares else [])


def test_training_answers_that_gain_more_than_held_out_answers_are_a_gap_on_every_scale():
    watch = Watch(AlarmConfig(reference_steps=1))
    watch.reward.first, watch.reward.last = [-3.0], [2.0]
    alarms, found = HeldOutAlarms(watch.config), []
    for step in (0, 10):
        one = HeldOut(step=step, score=-3.0, error=0.03, reward=-3.0, sampled=-3.0, shares=False)
        found += alarms.observe(one, watch.reward)
    assert kinds(found) == ["gap"]


@pytest.mark.parametrize(
    ("before", "after", "edges", "said"),
    [
        (5.219, 2.229, [-2.0, 9.0], "fell from 5.22 (steps 0 to 0) to 2.23"),
        (0.521, 0.222, [0.0, 4.0], "fell from 0.521 (steps 0 to 0) to 0.222"),
        (0.521, 0.222, [0.0, 1.0], "fell from 52.1% (steps 0 to 0) to 22.2%"),
        (0.521, 0.222, [0.0, 0.6], "fell from 52.1% (steps 0 to 0) to 22.2%"),
    ],
)
def test_a_score_is_a_percentage_only_between_0_and_1(before, after, edges, said):
    watch = Watch(AlarmConfig(reference_steps=1, heldout_window=1))
    watch.reward.first, watch.reward.last = [0.5], [0.5]
    fired: list[Alarm] = []
    for step, score in ((0, before), (10, after)):
        score_of = {"mean": score, "low": score - 0.02, "high": score + 0.02, "n": 64}
        fired += watch.evaluated(step, {"greedy": {"score": score_of}, "score_range": edges, "confidence": 0.95})
    assert [said in alarm.message for alarm in fired] == [True]


def of_answers(scores: list[float], checked: bool) -> dict:
    """An evaluation whose greedy answers have these scores, by the check or by the reward alone."""
    found = interval_of([[score] for score in scores], 0.95)
    saved = {name: value if math.isfinite(value) else None for name, value in found._asdict().items()}
    edges = {"score_range": [min(scores), max(scores)], "confidence": 0.95}
    return {"greedy": {"score": saved}, "check": {"sound": saved} if checked else {}, **edges}


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0), (-10.0, -2.0), (0.0, 5.0)])
@pytest.mark.parametrize("solved", [40, 63, 64])
def test_a_collapse_to_one_score_is_an_alarm_on_every_scale(checked, low, high, solved):
    """Equal scores outside 0 to 1 have no interval, before the fall and after it."""
    mixed, course = [high] * 56 + [low] * 8, [high] * solved + [low] * (64 - solved)
    for scores, fires in (([mixed, *[course] * 5, *[[low] * 64] * 5], True), ([mixed, *[[high] * 64] * 9], False)):
        watch = Watch(AlarmConfig(reference_steps=1))
        watch.independent = checked
        watch.reward.first, watch.reward.last = [0.5], [0.5]
        said = [alarm for step, one in enumerate(scores) for alarm in watch.evaluated(step, of_answers(one, checked))]
        assert kinds(said)[:1] == (["heldout_drop"] if fires else [])
        assert movement(watch.heldout.found) == ("fell" if fires else "rose")


@pytest.mark.parametrize("limits", [(None, None), (0.5, 0.5)])
def test_without_an_interval_no_fall_is_certain(limits):
    watch = Watch(AlarmConfig(reference_steps=1, heldout_window=1))
    watch.reward.first, watch.reward.last = [0.5], [0.5]
    for step, score in ((0, 0.5), (10, 0.4999), (20, 0.1)):
        low, high = (None, None) if limits[0] is None else (score, score)
        score_of = {"mean": score, "low": low, "high": high, "n": 64}
        assert watch.evaluated(step, {"greedy": {"score": score_of}, "confidence": 0.95}) == []
    state = json.loads(json.dumps(watch.state()))
    again = Watch(watch.config)
    again.load_state(state)
    assert again.heldout.found == watch.heldout.found


def resumed(before: Watch, settings: Mapping[str, object], answers: Path | None = None, version: int = 2) -> Watch:
    """A watch with other settings that goes on from the state of `before`, which `version` 1 kept without settings."""
    state = json.loads(json.dumps(before.state()))
    if version == 1:
        del state["settings"]
    after = Watch(AlarmConfig(**settings), check=IndependentCheck(None))
    after.load_state(state, answers)
    return after


def first_answers(folder: Path) -> Path:
    """Twenty held-out answers with rewards from 0 to 19; the check gives half of each reward."""
    answers = [Answer(text="a", ids=(1,), finish_reason="eos", score=float(n), check={"c": n / 2}) for n in range(20)]
    records = [Record(index=n, prompt="?", greedy=answer) for n, answer in enumerate(answers)]
    (folder / "baseline.jsonl").write_text("".join(json.dumps(asdict(record)) + "\n" for record in records))
    return folder / "baseline.jsonl"


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kept", [False, True], ids=["no answers", "answers"])
def test_changed_settings_count_in_a_resumed_run(tmp_path, kept, version):
    """Also if the setting was null before. The sum under the old settings says nothing about the new ones."""
    answers = first_answers(tmp_path) if kept else None
    for old in ({"accepted_at": 5.0, "baseline_disagreement": 0.02}, {}):
        before = Watch(AlarmConfig(**old), check=IndependentCheck(None))
        before.before_training(first_answers(tmp_path))
        before.observe(1, {"reward": 1.0, "check/checked": 8, "check/rejected": 2, "check/rejected_prompts": 2})
        assert before.disagreement.cusum.value > 0
        same = resumed(before, old, answers, version)
        assert same.state() == before.state()
        after = resumed(before, {"accepted_at": 0.5, "baseline_disagreement": 0.2}, answers, version)
        assert (after.accepted_at, after.disagreement.baseline) == (0.5, 0.2)
        assert after.disagreement.cusum == Disagreement(3.0, 9.0).cusum


def test_an_alarm_whose_settings_have_changed_may_fire_again(tmp_path):
    rejected = {"reward": 1.0, "check/checked": 8, "check/rejected": 8, "check/rejected_prompts": 8}
    before = Watch(AlarmConfig(baseline_disagreement=0.02), check=IndependentCheck(None))
    before.before_training(first_answers(tmp_path))
    assert [alarm.kind for step in range(1, 9) for alarm in before.observe(step, rejected)[0]] == ["disagreement"]
    same, after = (resumed(before, {"baseline_disagreement": baseline}, None) for baseline in (0.02, 0.2))
    [fired] = before.fired
    for watch, fires in ((same, 0), (after, 1)):
        again = resumed(watch, {"baseline_disagreement": watch.config.baseline_disagreement}, None)
        assert sum(len(again.observe(step, rejected)[0]) for step in range(9, 17)) == fires
        assert fired in again.fired, "it still says which checkpoint to keep"


def test_what_is_null_in_a_resumed_run_is_worked_out_as_before_training(tmp_path):
    given, answers = (
        {"accepted_at": 2.0, "baseline_disagreement": 0.2, "check_accepts_at": 3.0},
        first_answers(tmp_path),
    )
    fresh = Watch(AlarmConfig(), check=IndependentCheck(None))
    fresh.before_training(answers)
    assert (fresh.accepted_at, fresh.disagreement.baseline) == (14.25, 0.01)
    before = Watch(AlarmConfig(**given), check=IndependentCheck(None))
    before.before_training(answers)
    after = resumed(before, {}, answers)
    assert (after.accepted_at, after.disagreement.baseline) == (14.25, 0.01)
    stricter = resumed(fresh, {"check_accepts_at": 8.0}, answers)
    assert stricter.disagreement.baseline == wilson(1, 5, 0.8).high, "it rejects 7.5 of 7.5 to 9.5"
    assert resumed(stricter, {}, answers).state() == fresh.state()
    off = Watch(AlarmConfig(enabled=False, check_accepts_at=8.0), check=IndependentCheck(None))
    assert resumed(off, {"check_accepts_at": 8.0}, answers).state() == stricter.state(), "switched on"
    nothing_left = resumed(before, {})
    assert (nothing_left.accepted_at, nothing_left.disagreement.baseline) == (1.0, 0.01)


@pytest.mark.parametrize(
    ("steps", "size", "first", "last"),
    [
        (100, 3, [1, 2, 3], [98, 99, 100]),
        (100, 8, [1, 2, 3, 4, 5], [96, 97, 98, 99, 100]),
        (4, 2, [1, 2], [3, 4]),
        (4, 9, [1, 2, 3, 4], []),
        (8, 7, [1, 2, 3, 4, 5, 6, 7], [8]),
        (8, 3, [1, 2, 3], [6, 7, 8]),
        (100, 5, [1, 2, 3, 4, 5], [96, 97, 98, 99, 100]),
        (0, 9, [], []),
    ],
)
def test_the_first_steps_of_a_resumed_run_are_never_late_ones(steps, size, first, last):
    before, after = Course(5), Course(size)
    for step in range(1, steps + 1):
        before.add(float(step))
    after.load_state(before.state())
    assert (after.first, after.last) == (first, last)
    again = Course(size)
    again.load_state(after.state())
    assert (again.first, again.last) == (first, last)
    for step in range(steps + 1, 3 * size + steps + 1):
        after.add(float(step))
    start = first if steps == 100 else [float(step) for step in range(1, size + 1)]
    assert (after.first, after.last[-1], after.is_known) == (start, 3 * size + steps, True)


def test_the_error_of_first_and_last_steps_of_different_number():
    course = Course(4)
    course.first, course.last = [1.0, 3.0], [4.0, 4.0, 8.0, 8.0]
    assert course.error == pytest.approx(math.sqrt(2 / 2 + (16 / 3) / 4))
    course.first = [1.0]
    assert course.error == pytest.approx(math.sqrt((16 / 3) * (1 + 1 / 4)))
