"""The sentences of the verdict: they claim what the intervals show, and no more."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.catalogue import catalogue
from tests.report.synthetic_run import evaluation

from posttrain.evaluate.evaluation import Answer, Record, evaluation_json
from posttrain.evaluate.heldout import summarise
from posttrain.report.lines import evaluation_line
from posttrain.report.notes import observations
from posttrain.report.phases import who_waits
from posttrain.report.proofs import proofs
from posttrain.report.store import RunRecord
from posttrain.report.verdict import in_brief, measure_of, span, verdict


def run_of(**metrics: list[float]) -> RunRecord:
    """Return a finished run with these series. Write `__` for `/` in names."""
    steps = max((len(values) for values in metrics.values()), default=0)
    rows = [{"step": i + 1, **{k.replace("__", "/"): v[i] for k, v in metrics.items()}} for i in range(steps)]
    return RunRecord(folder=Path("run"), status="finished", metrics=rows)


def evaluated(before: float, after: float, **more) -> RunRecord:
    content = {"baseline": evaluation(before), "trained": evaluation(after), **more}
    return replace(run_of(), evaluation=content)


def titles(run: RunRecord) -> list[str]:
    return [note.title for note in observations(run)]


@pytest.mark.parametrize(
    ("before", "after", "difference", "headline"),
    [
        (0.2, 0.9, None, "The model improved."),
        (0.9, 0.2, None, "The model got worse."),
        (0.5, 0.52, None, "No improvement is shown."),
        (0.5, 0.55, (0.05, 0.01, 0.09), "The model improved."),
        (0.55, 0.5, (-0.05, -0.09, -0.01), "The model got worse."),
        (0.5, 0.55, (0.05, -0.01, 0.11), "No improvement is shown."),
    ],
)
def test_the_headline_follows_the_intervals(before, after, difference, headline):
    more = {}
    if difference:
        more["difference"] = {"accuracy": dict(zip(("mean", "low", "high"), difference, strict=True))}
    assert verdict(evaluated(before, after, **more)).headline == headline


def test_in_brief_it_is_a_sentence_and_a_direction():
    assert in_brief(evaluated(0.2, 0.9)) == {"sentence": "The model improved.", "change": 1}
    assert in_brief(evaluated(0.9, 0.2)) == {"sentence": "The model got worse.", "change": -1}
    assert in_brief(evaluated(0.5, 0.5)) == {"sentence": "No improvement is shown.", "change": 0}
    assert in_brief(run_of()) == {"sentence": "No held-out evaluation.", "change": None}


def test_a_lower_loss_is_better():
    sides = [{"loss": {"mean": m, "low": m - 0.1, "high": m + 0.1, "n": 9}} for m in (3.0, 2.0)]
    run = replace(run_of(), evaluation={"baseline": sides[0], "trained": sides[1]})
    assert verdict(run).headline == "The model improved."
    assert verdict(replace(run, evaluation={"baseline": sides[1], "trained": sides[0]})).tone == "bad"


def test_a_check_that_fell_while_the_reward_rose_is_pointed_out():
    check = {"judge": {"baseline": evaluation(0.9)["greedy"]["score"], "trained": evaluation(0.2)["greedy"]["score"]}}
    run = evaluated(0.2, 0.9, check=check)
    found = verdict(run)
    assert "it fell while the reward rose. Look at the samples for a gamed reward." in " ".join(found.sentences)
    assert found.headline == "By its reward the model improved; by the independent check it got worse."
    assert (found.tone, found.change) == ("bad", 1)
    assert [proof.state for proof in proofs(run) if "independent" in proof.claim] == ["no"]


def test_a_check_that_fell_with_the_score_agrees_with_it():
    check = {"judge": {"baseline": evaluation(0.9)["greedy"]["score"], "trained": evaluation(0.2)["greedy"]["score"]}}
    run = evaluated(0.9, 0.2, check=check)
    assert verdict(run).sentences[1].endswith("and agrees.")
    assert [proof.state for proof in proofs(run) if "independent" in proof.claim] == ["yes"]


@catalogue("before, after, state", [(0.9, 0.2, "no"), (0.2, 0.9, "unknown"), (0.5, 0.5, "unknown")])
def test_a_check_that_moved_while_the_measure_did_not_never_agrees(before, after, state):
    check = {"judge": {"baseline": evaluation(before)["greedy"]["score"]}}
    check["judge"]["trained"] = evaluation(after)["greedy"]["score"]
    run = evaluated(0.5, 0.5, check=check)
    assert [proof.state for proof in proofs(run) if "independent" in proof.claim] == [state]


def test_a_flat_reward_with_a_fallen_score_blames_the_learning_rate_first():
    run = replace(evaluated(0.9, 0.2), metrics=run_of(reward=[0.1, 0.0, 0.1, 0.0] * 5).metrics)
    assert "a learning rate that is too high (the held-out score fell)" in observations(run)[0].text


@pytest.mark.parametrize(
    ("after", "sentence"),
    [
        (2.03, "(+1.5%): the model still predicts it about as well as before."),
        (2.5, "(+25.0%): the model has become worse at it."),
        (1.5, "(−25.0%): the model has become better at it."),
    ],
)
def test_forgetting_is_said_with_its_size(after, sentence):
    run = evaluated(0.2, 0.9, forgetting={"baseline_loss": 2.0, "trained_loss": after})
    assert verdict(run).sentences[-1].endswith(sentence)


def test_a_run_that_was_interrupted_is_not_measured_after_and_says_how_it_can_be():
    run = replace(run_of(), evaluation={"baseline": evaluation(0.2)}, status="failed", checkpoint_steps=[0, 30])
    error = {"type": "KeyboardInterrupt", "message": "stopped after step 30"}
    found = verdict(replace(run, error=error))
    assert (found.headline, found.tone) == ("The run was interrupted.", "plain")
    assert "`posttrain eval run` measures its checkpoint of step 30 on the same rows." in found.sentences[-1]
    stopped = verdict(replace(run, error={"type": "GuardStop"}))
    assert stopped.headline == "The run stopped with an error."
    assert stopped.sentences == found.sentences
    assert "posttrain eval" not in " ".join(verdict(replace(run, error=error, checkpoint_steps=[0])).sentences)


def test_without_a_trained_score_nothing_is_claimed():
    run = replace(run_of(reward=[0.1, 0.5, 0.9]), evaluation={"baseline": evaluation(0.2)})
    found = verdict(run)
    assert found.headline == "No held-out evaluation."
    assert "does not prove that the model improved" in found.sentences[-1]


@pytest.mark.parametrize(
    ("ranges", "measure"),
    [
        ([[0, 1], [0, 1]], "accuracy"),
        ([[0, 0], [0, 0]], "accuracy"),
        ([[0, 0.3], [0, 0.6]], "score"),
        ([[-1, 1], [0, 1]], "score"),
        ([[0, 1], [0, 7]], "score"),
        ([[None, None]], "accuracy"),
    ],
)
def test_accuracy_is_the_headline_only_for_rewards_of_that_scale(ranges, measure):
    assert measure_of(*({"score_range": edges} for edges in ranges)) == measure


def test_limits_that_were_not_finite_are_infinite_again():
    assert span({"mean": 0.5, "low": None, "high": None, "n": 1}) == (0.5, float("-inf"), float("inf"), 1)
    assert span({"mean": None, "low": 0.0, "high": 1.0, "n": 0}) is None


def test_a_reward_of_zero_everywhere_is_explained():
    run = run_of(reward=[0.0] * 30, frac_reward_zero_std=[1.0] * 30, loss=[0.0] * 30, grad_norm=[0.0] * 30)
    assert titles(run)[0] == "Every answer in all 30 steps got reward 0"
    assert "The loss is exactly 0" in titles(run)
    assert any("the prompts are too hard for this model" in note.text for note in observations(run))


def test_a_flat_reward_is_told_from_a_rising_and_a_falling_one():
    noise = [0.02, -0.02, 0.01, -0.01, 0.0] * 6
    assert titles(run_of(reward=[0.5 + n for n in noise])) == ["The reward is flat"]
    assert titles(run_of(reward=[0.2 + 0.02 * i + n for i, n in enumerate(noise)])) == ["The reward rose"]
    assert titles(run_of(reward=[0.9 - 0.02 * i + n for i, n in enumerate(noise)])) == ["The reward fell"]
    assert titles(run_of(reward=[0.5] * 30)) == ["The reward never changed"]


def test_a_loss_about_zero_is_no_alarm_when_there_is_a_gradient():
    run = run_of(reward=[0.1 * i for i in range(20)], loss=[1e-3] * 20, grad_norm=[0.5] * 20)
    note = next(note for note in observations(run) if "loss" in note.title.lower())
    assert (note.level, note.title) == ("ok", "The loss is about 0")
    assert "advantages of a group sum to 0" in note.text


def test_a_supervised_loss_near_zero_is_not_explained_away():
    assert titles(run_of(loss=[1e-3] * 20, grad_norm=[0.5] * 20)) == []


@catalogue(
    "metrics, title",
    [
        ({"completions__clipped_ratio": [0.0] * 8 + [0.6] * 8}, "Answers were cut off"),
        ({"unscored_fraction": [0.0] * 9 + [0.3]}, "Some answers could not be scored"),
        ({"entropy": [1.0] * 10 + [0.05] * 10}, "The entropy collapsed"),
        ({"entropy": [0.4] * 10 + [2.0] * 10}, "The entropy grew"),
        ({"sampling__sampling_logp_difference__mean": [0.3] * 5}, "Sampler and trainer disagree"),
        ({"sampling__sampling_logp_difference__mean": [1e-7] * 5}, "Sampler and trainer agree"),
        ({"clip_ratio__region_mean": [0.5] * 5}, "Much was clipped"),
        ({"grad_norm": [1.0] * 19 + [50.0]}, "The gradient had a spike"),
        ({"completions__mean_length": [10.0] * 10 + [40.0] * 10}, "Answers became longer"),
        ({"completions__mean_length": [40.0] * 10 + [10.0] * 10}, "Answers became shorter"),
        ({"frac_reward_zero_std": [0.2] * 10 + [0.9] * 10}, "The signal is running out"),
    ],
)
def test_what_is_worth_noticing_is_noticed(metrics, title):
    assert titles(run_of(**metrics)) == [title]


def test_who_waits_is_said_in_shares_of_the_step():
    times = {"sample": 6.0, "wait_for_rewards": 1.0, "train": 2.5, "publish": 0.5}
    assert who_waits(times) == pytest.approx((0.6, 0.1, 0.3))
    assert who_waits({"wait_for_rewards": 1.0, "train": 1.0}) == pytest.approx((0.0, 0.5, 0.5))
    assert who_waits({"train": 2.5}) is None
    assert who_waits({}) is None


def graded(before: list[float], after: list[float], right: tuple[int, int] | None = None) -> RunRecord:
    """A finished run with these scores of the same prompts. `right`: how many of them a verifier called right."""
    shared: dict[str, Any] = {
        "samples": 0,
        "confidence": 0.95,
        "temperature": 1.0,
        "top_p": 1.0,
        "max_completion_length": 8,
        "seed": 0,
    }
    shared |= {"verifiers": ("math",)} if right else {}

    def answer(place: int, score: float, many: int | None) -> Answer:
        verified = None if many is None else place < many
        return Answer(text="", ids=(1,), finish_reason="eos", score=score, right=verified)

    first, second = (
        summarise(
            [Record(index=i, prompt=str(i), greedy=answer(i, score, many)) for i, score in enumerate(scores)], **shared
        )
        for scores, many in zip((before, after), right or (None, None), strict=True)
    )
    return replace(run_of(), evaluation=json.loads(json.dumps(evaluation_json(first, second))))


LEVELS = [round(0.05 * (i % 9), 2) for i in range(64)]


@catalogue("best", [0.99, 1.0])
@catalogue("place", [0, 63])
@catalogue(
    "before, after, headline",
    [
        (LEVELS, [score + 0.5 for score in LEVELS], "The model improved."),
        ([0.8] * 64, [1.0] * 12 + [0.0] * 52, "The model got worse."),
        ([0.8] * 63 + [0.7], [0.8] * 63 + [0.7], "No improvement is shown."),
        ([score + 0.5 for score in LEVELS], LEVELS, "The model got worse."),
    ],
)
def test_whether_one_answer_reaches_1_changes_no_verdict_of_a_graded_reward(best, place, before, after, headline):
    for side in (0, 1):
        sides = [list(before), list(after)]
        sides[side][place] = best
        run = graded(*sides)
        assert verdict(run).measure == "score"
        assert verdict(run).headline == headline


def test_the_share_of_full_marks_is_shown_beside_a_graded_score():
    run = graded([0.8] * 64, [1.0] * 16 + [0.5] * 48)
    (sentence,) = [one for one in verdict(run).sentences if one.startswith("Answers with a score of 1")]
    assert sentence.startswith("Answers with a score of 1: 0% (0% to ")
    assert ", 25% (" in sentence
    assert "full marks 25%" in evaluation_line(run.evaluation["trained"], run.evaluation["baseline"])


@catalogue(
    "before, after, right, measure",
    [
        ([0.0] * 64, [1.0] * 64, (0, 0), "score"),  # a bonus of 1 for wrong answers
        ([0.0] * 64, [1.2] * 32 + [0.2] * 32, (0, 32), "score"),  # a bonus beside right answers
        ([-1.0] * 64, [1.0] * 48 + [-1.0] * 16, (0, 48), "score"),  # -1 for wrong answers
        ([0.0] * 64, [1.0] * 48 + [0.0] * 16, (0, 48), "accuracy"),
    ],
)
def test_a_verifier_decides_what_is_called_right(before, after, right, measure):
    run = graded(before, after, right)
    assert verdict(run).measure == measure
    assert verdict(run).headline == "The model improved."
    said = [one for one in verdict(run).sentences if one.startswith("Right answers (math): 0% (")]
    assert len(said) == (measure == "score")
    assert all(f", {right[1] / 64:.0%} (" in one for one in said)


def test_shares_of_right_answers_that_were_counted_differently_are_not_compared():
    run = graded([1.0] * 64, [1.2] * 32 + [0.2] * 32, (64, 32))
    run.evaluation["baseline"].pop("verifiers")  # as an earlier version wrote it
    assert verdict(run).measure == "score"
    assert not any("Right answers" in one for one in verdict(run).sentences)


@pytest.mark.parametrize(("before", "after"), [(0, 0), (0, 40), (12, 0), (0, 64), (64, 64), (3, 50)])
def test_of_rewards_that_are_0_or_1_the_accuracy_decides(before, after):
    run = graded(*([1.0] * right + [0.0] * (64 - right) for right in (before, after)))
    assert verdict(run).measure == "accuracy"
    assert not any("score of 1" in one for one in verdict(run).sentences)
    assert "full marks" not in evaluation_line(run.evaluation["trained"])


WORSE_WRITING = {
    "baseline": {}, "trained": {"same": {"mean": 0.8, "low": 0.7, "high": 0.9, "n": 64}}, "given": {"same": 0.0},
    "difference": {"same": {"mean": 0.7, "low": 0.5, "high": 0.9, "n": 64}},
}  # fmt: skip


@pytest.mark.parametrize("scores", [([0.0] * 64, [1.0] * 64), ([0.2] * 64, [0.7] * 32 + [0.8] * 32)])
@pytest.mark.parametrize(("check", "told"), [(None, True), ((0.2, 0.9), False), ((0.5, 0.5), True)])
def test_worse_writing_reaches_the_headline_of_every_measure_unless_a_check_rose(scores, check, told):
    run = graded(*scores)
    checks = {} if check is None else {"judge": dict(zip(("baseline", "trained"), map(share, check), strict=True))}
    run = replace(run, evaluation={**run.evaluation, "writing": WORSE_WRITING, "check": checks})
    found = verdict(run)
    assert ("It writes worse: it gives different prompts the same answer." in found.headline) == told
    assert found.tone == ("bad" if told else "good")
    assert found.change == 1


def share(value: float) -> dict:
    return evaluation(value)["greedy"]["score"]


@pytest.mark.parametrize(
    ("difference", "headline"),
    [
        ((-0.19, -0.3, -0.08), "By its reward the model improved; by the independent check it got worse."),
        ((-0.19, -0.4, 0.02), "The model improved."),
        (None, "The model improved."),
    ],
)
def test_a_check_that_fell_on_the_same_prompts_fell_although_its_intervals_overlap(difference, headline):
    checks = {"judge": {"baseline": share(0.5), "trained": share(0.42)}}
    if difference is not None:
        checks["judge"]["difference"] = dict(zip(("mean", "low", "high"), difference, strict=True)) | {"n": 64}
    found = verdict(evaluated(0.2, 0.9, check=checks))
    assert found.headline == headline
    said = " ".join(found.sentences)
    assert ("its intervals overlap" in said) == (headline == "The model improved.")
    assert ("prompt by prompt −19 points" in said) == (difference is not None)
