"""From judged answers to numbers: problems first, unscored answers omitted, the right interval for each kind of
number."""

import json
import math
from dataclasses import replace

import pytest
from tests.evaluate.answers import answer, record, scored, summary

from posttrain.evaluate.evaluation import Evaluation, evaluation_json, paired_difference
from posttrain.functional.estimators import majority_at_k, pass_at_k
from posttrain.functional.intervals import mean_interval, wilson


def test_problems_are_averaged_first_then_the_set():
    """2, 4, 0 and 1 of 4 answers are right."""
    found = summary([scored(0, 1.0, "AAbb"), scored(1, 1.0, "AAAA"), scored(2, 0.0, "bcde"), scored(3, 0.0, "Abbb")])
    assert {k: interval.mean for k, interval in found.pass_at_k.items()} == pytest.approx(
        {k: sum(pass_at_k(4, c, k) for c in (2, 4, 0, 1)) / 4 for k in (1, 2, 4)}
    )
    votes = sum(majority_at_k(v, [x.isupper() for x in v], 4) for v in ("AAbb", "AAAA", "bcde", "Abbb")) / 4
    assert found.majority_at_k[4].mean == pytest.approx(votes) == (0.5 + 1 + 0 + 0) / 4
    assert found.pass_at_1 == found.pass_at_k[1]
    assert (found.prompts, found.greedy_accuracy.n, found.pass_at_k[4].n) == (4, 4, 4)


def test_one_greedy_answer_per_problem_gets_wilson_and_several_the_bounded_interval():
    records = [scored(i, float(i < 3), "AAbb") for i in range(10)]
    found = summary(records)
    assert found.greedy_accuracy == wilson(3, 10)
    assert found.greedy_score == wilson(3, 10), "a score whose values are all 0 or 1 is a share"
    assert found.pass_at_k[1] == mean_interval([0.5] * 10, bounds=(0, 1))


@pytest.mark.parametrize("scores", [[5.0], [0.5], [5.0] * 8, [-1.0] * 8], ids=str)
def test_limits_that_are_not_known_are_not_printed(scores):
    """A single score, and equal scores outside 0 to 1, show no spread."""
    before = summary([record(i, answer(score)) for i, score in enumerate(scores)], samples=0)
    found = replace(before, before=before)
    assert f"{scores[0]:.3f}  [no interval]  n {len(scores)}" in found.render()
    assert f"<td>{scores[0]:.3f}</td><td>none</td>" in found._repr_html_()
    assert "inf" not in found.render() + found._repr_html_()


def test_a_score_that_is_not_0_or_1_gets_student():
    scores = [0.1, 0.7, 1.3, -2.0, 0.4]
    found = summary([record(i, answer(score)) for i, score in enumerate(scores)], samples=0)
    assert found.greedy_score == mean_interval(scores)
    assert found.greedy_accuracy == wilson(1, 5), "1.3 is above the full mark"
    assert found.score_range == (-2.0, 1.3)


def test_correct_means_a_total_reward_of_one_up_to_rounding():
    assert answer(0.1 + 0.2 + 0.7).correct
    assert answer(1.0 - 1e-12).correct
    assert not answer(0.999).correct
    assert not answer(None).correct


def test_an_unscored_answer_is_left_out_and_counted_never_zero():
    """The first problem has three scored samples and is left out of pass@4; the second has all four."""
    found = summary([scored(0, None, "AA-b"), scored(1, 1.0, "AAAA")])
    assert found.unscored == 2
    assert found.greedy_accuracy == wilson(1, 1)
    assert found.pass_at_k[1].mean == pytest.approx((2 / 3 + 1) / 2)
    assert (found.pass_at_k[2].n, found.pass_at_k[4].n) == (2, 1)
    assert found.sampled_score is not None
    assert found.sampled_score.mean == pytest.approx((2 / 3 + 1) / 2)


def test_nothing_scored_is_no_number():
    found = summary([scored(0, None, "----")])
    assert math.isnan(found.greedy_accuracy.mean)
    assert found.greedy_accuracy.n == 0
    assert found.to_json()["greedy"]["accuracy"] == {"mean": None, "low": 0.0, "high": 1.0, "n": 0}


def test_no_prompts_is_an_evaluation_without_numbers():
    found = summary([])
    assert found.prompts == 0
    assert Evaluation.from_json(json.loads(json.dumps(found.to_json()))).greedy_accuracy.n == 0


def test_lengths_and_truncation_are_of_the_greedy_answers_and_apart_of_the_samples():
    greedy = [answer(1.0, tokens=4), answer(0.0, tokens=8, finish_reason="length")]
    cut = answer(0.0, tokens=8, finish_reason="length")
    found = summary([record(i, g, cut, cut, cut, answer(1.0, tokens=2)) for i, g in enumerate(greedy)])
    assert (found.mean_length, found.truncated) == (6.0, 0.5)
    assert (found.sampled_mean_length, found.sampled_truncated) == (6.5, 0.75)


def test_parts_and_check_are_kept_apart_by_label_and_none_drops_out():
    first = answer(1.0, parts={"right": 1.0, "brief": None}, check={"judge": 0.25})
    second = answer(0.5, parts={"right": 0.0, "brief": 0.5}, check={"judge": None})
    found = summary([record(0, first), record(1, second)], samples=0)
    assert found.rewards["right"] == wilson(1, 2)
    assert (found.rewards["brief"].mean, found.rewards["brief"].n) == (0.5, 1)
    assert (found.check["judge"].mean, found.check["judge"].n) == (0.25, 1)


def test_the_json_form_is_that_of_the_run_folder_and_reads_back():
    found = summary([scored(0, 1.0, "AAbb"), scored(1, 0.0, "bcde")])
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert set(data["greedy"]) == {"score", "accuracy"}
    assert set(data["sampled"]["pass@k"]) == set(data["sampled"]["majority@k"]) == {"1", "2", "4"}
    assert data["sampled"]["pass@1"] == data["sampled"]["pass@k"]["1"]
    assert data["greedy"]["accuracy"] == {
        "mean": 0.5,
        "low": pytest.approx(0.0945, abs=1e-4),
        "high": pytest.approx(0.9055, abs=1e-4),
        "n": 2,
    }
    assert (data["temperature"], data["top_p"], data["max_completion_length"], data["confidence"]) == (
        1.0,
        1.0,
        8,
        0.95,
    )
    assert Evaluation.from_json(data) == found


def test_greedy_only_has_an_empty_sampled_part():
    found = summary([record(0, answer(1.0))], samples=0)
    assert found.to_json()["sampled"] == {}
    assert Evaluation.from_json(found.to_json()).pass_at_1 == wilson(1, 1)


def test_infinite_limits_survive_as_null():
    found = summary([record(0, answer(0.3))], samples=0)
    assert found.to_json()["greedy"]["score"] == {"mean": 0.3, "low": None, "high": None, "n": 1}
    assert Evaluation.from_json(found.to_json()).greedy_score == (0.3, -math.inf, math.inf, 1)


def test_the_paired_difference_is_over_prompts_that_both_scored():
    """10 prompts: 2 right before, 8 after; one was unscored before and one is not in the second set."""
    before = [record(i, answer(float(i < 2))) for i in range(10)] + [record(10, answer(None)), record(11, answer(1.0))]
    after = [record(i, answer(float(i < 8))) for i in range(10)] + [record(10, answer(1.0))]
    difference = paired_difference(summary(before, samples=0), summary(after, samples=0))
    assert (difference["accuracy"].mean, difference["accuracy"].n) == (pytest.approx(0.6), 10)
    assert difference["accuracy"].low > 0.1
    assert difference["score"] == difference["accuracy"]


@pytest.mark.parametrize(("score", "right"), [(0.8, True), (1.2, False), (1.0, True), (0.0, False)])
def test_equal_answers_of_an_earlier_version_differ_in_nothing(score, right):
    before = summary([record(i, answer(score)) for i in range(9)], samples=0)
    trained = summary([record(i, answer(score, right=right)) for i in range(9)], samples=0, verifiers=("numeric",))
    assert trained.greedy_accuracy.mean == right
    assert paired_difference(before, trained)["accuracy"].mean == 0
    worse = summary([record(i, answer(0.0, right=False)) for i in range(9)], samples=0, verifiers=("numeric",))
    assert paired_difference(before, worse)["accuracy"].mean == -(score >= 1)
    assert paired_difference(trained, worse)["accuracy"].mean == -right


def test_evaluation_json_holds_both_sides_their_difference_and_the_check():
    before = summary([record(i, answer(0.0, check={"judge": 0.0})) for i in range(5)], samples=0)
    after = summary([record(i, answer(1.0, check={"judge": 1.0})) for i in range(5)], samples=0)
    content = json.loads(json.dumps(evaluation_json(before, after, {"baseline_loss": 2.0, "trained_loss": math.inf})))
    assert content["baseline"] == json.loads(json.dumps(before.to_json()))
    assert content["difference"]["accuracy"]["mean"] == 1.0
    assert content["check"]["judge"]["trained"] == content["trained"]["check"]["judge"]
    assert content["forgetting"] == {"baseline_loss": 2.0, "trained_loss": None}
    assert set(evaluation_json(before)) == {"baseline", "check"}


def test_a_check_has_a_paired_difference_over_prompts_that_it_judged_twice():
    """38 → 26 of 64 prompts: the two intervals overlap, the paired one does not contain 0."""
    judged = [(float(i < 38), float(i < 26)) for i in range(64)] + [(None, 1.0), (0.0, math.nan)]
    before, after = (
        summary([record(i, answer(1.0, check={"judge": pair[side]})) for i, pair in enumerate(judged)], samples=0)
        for side in (0, 1)
    )
    found = evaluation_json(before, after)["check"]["judge"]["difference"]
    assert (found["mean"], found["n"]) == (pytest.approx(-12 / 64), 64)
    assert found["high"] < 0
    assert before.check["judge"].overlaps(after.check["judge"])
    assert "difference" not in evaluation_json(before)["check"]["judge"]


def test_answers_are_written_one_line_per_prompt(tmp_path):
    found = summary([scored(0, 1.0, "AAbb"), record(1, answer(None, "\u2028<b>"))])
    lines = found.write_answers(tmp_path / "answers.jsonl").read_text(encoding="utf-8").strip("\n").split("\n")
    rows = [json.loads(line) for line in lines]
    assert [row["index"] for row in rows] == [0, 1]
    assert rows[0]["greedy"]["ids"] == [0, 1, 2, 3]
    assert [sample["score"] for sample in rows[0]["samples"]] == [1.0, 1.0, 0.0, 0.0]
    assert rows[1]["greedy"]["score"] is None


def test_text_and_table_say_the_same_and_the_table_escapes_labels():
    found = summary([record(0, answer(0.5, check={"<b>": 1.0}))], samples=0)
    assert "check: <b>" in found.render()
    assert "greedy score             0.500  [no interval]  n 1" in found.render()
    assert "check: &lt;b&gt;" in found._repr_html_()
    assert "<b>" not in found._repr_html_()


def test_a_score_that_is_the_accuracy_is_said_once():
    names = [name for name, _ in summary([scored(0, 1.0, "AAbb"), scored(1, 0.0, "bcde")]).rows()]
    assert names == ["greedy accuracy", "pass@1", "pass@2", "pass@4", "majority@4"]


@pytest.mark.parametrize("scores", [(0.4, -1.7), (3.2, 1.0)])
def test_scores_without_a_full_mark_are_never_called_accuracy(scores):
    """Answers with the scores of a reward model, for example, are neither right nor wrong."""
    found = summary([scored(index, score, "AAbb") for index, score in enumerate(scores)])
    assert [name for name, _ in found.rows()] == ["greedy score", "sampled score"]
    assert "accuracy" not in found.render()
    assert "accuracy" not in found._repr_html_()
