"""The measures on held-out preferences, for answers with log-probabilities from a table."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from posttrain.config import RunConfig
from posttrain.evaluate.heldout_pairs import HeldOutLabels, HeldOutPolicyPairs
from posttrain.evaluate.row_scores import score_rows
from posttrain.functional.auc import auc_interval
from posttrain.functional.intervals import mean_interval, paired_interval, wilson
from posttrain.models.packing import needed_tokens
from posttrain.types import Batch, Example, LabelledExample, Outputs, Pair


@dataclass
class Table:
    """A policy that gives each token id its own log-probability, whatever comes before it."""

    logprobs: dict[int, float]
    largest: int = 0
    """Number of tokens in the largest batch of the model: the last token of a row predicts nothing."""

    def __call__(self, batch: Batch) -> Outputs:
        assert batch.tokens is not None
        self.largest = max(self.largest, int(needed_tokens(batch.completion_mask_BT).sum()))
        values = torch.zeros(100)
        for token, value in self.logprobs.items():
            values[token] = value
        return Outputs(values[batch.tokens.input_ids_BT] * batch.completion_mask_BT)


def answer(*ids: int) -> Example:
    return Example(index=0, input_ids=(1, *ids), completion_mask=(False, *(True for _ in ids)))


def pair(chosen: Example, rejected: Example) -> Pair:
    return Pair(index=0, chosen=chosen, rejected=rejected)


def config(**changes: object) -> RunConfig:
    made = RunConfig.model_validate(
        {"model": {"path": "any"}, "algorithm": {"name": "sft"}, "data": {"train": "any"}, "train": {"steps": 1}}
    )
    return made.model_copy(update=changes)


PAIRS = [
    pair(answer(10, 11), answer(12)),  # more likely in sum: the shorter one; per token: the chosen one
    pair(answer(13), answer(12)),
    pair(answer(12), answer(12)),  # a tie
]
BEFORE = {10: -1.0, 11: -1.0, 12: -1.5, 13: -2.0}
AFTER = {10: -0.5, 11: -0.5, 12: -2.0, 13: -2.4}


def measured(table: Table, folder: Path, name: str, pairs: list[Pair] = PAIRS, **changes: object) -> dict:
    return HeldOutPolicyPairs(config(**changes), table, pairs, pad_id=0)(folder, name)


def test_measuring_keeps_no_graph_of_what_was_computed(tmp_path: Path):
    """A graph that was kept until the last row was scored took several gigabytes for 64 pairs."""
    recorded: list[bool] = []

    def policy(batch: Batch) -> Outputs:
        recorded.append(torch.is_grad_enabled())
        return Table(BEFORE)(batch)

    HeldOutPolicyPairs(config(), policy, PAIRS, pad_id=0)(tmp_path, "baseline")
    score_rows(policy, [answer(10, 11)], pad_id=0, tokens_per_microbatch=8)
    assert recorded == [False, False]


def test_pairs_are_ranked_by_sums_and_by_means_and_ties_count_half(tmp_path: Path):
    found = measured(Table(BEFORE), tmp_path, "baseline")["baseline"]
    assert found["accuracy"]["mean"] == pytest.approx((0 + 0 + 0.5) / 3)
    assert found["accuracy_per_token"]["mean"] == pytest.approx((1 + 0 + 0.5) / 3)
    assert found["margin"]["mean"] == pytest.approx((-0.5 - 0.5 + 0) / 3)
    assert found["logps_chosen"] == mean_interval([-2.0, -2.0, -1.5])._asdict()
    assert found["nll_chosen"]["mean"] == pytest.approx(5.5 / 4)  # over the tokens of all chosen answers
    assert "implicit" not in found
    assert found["pairs"] == 3


def test_without_ties_the_accuracy_has_wilsons_interval(tmp_path: Path):
    found = measured(Table(BEFORE), tmp_path, "baseline", PAIRS[:2])["baseline"]
    assert found["accuracy"] == wilson(0, 2)._asdict()


def test_after_training_the_log_ratio_to_the_stored_scores_ranks_too(tmp_path: Path):
    measured(Table(BEFORE), tmp_path, "baseline")
    found = measured(Table(AFTER), tmp_path, "trained")
    moved = [(+1.0, -0.5), (-0.4, -0.5), (-0.5, -0.5)]  # chosen, rejected
    implicit = found["trained"]["implicit"]
    assert implicit["accuracy"]["mean"] == pytest.approx((1 + 1 + 0.5) / 3)
    assert implicit["margin"]["mean"] == pytest.approx((1.5 + 0.1 + 0.0) / 3, abs=1e-6)
    change = found["difference"]
    assert change["accuracy"]["mean"] == pytest.approx(1 / 3)
    assert change["accuracy"] == paired_interval([0, 0, 0.5], [1, 0, 0.5], bounds=(0, 1))._asdict()
    assert change["logps_chosen"]["mean"] == pytest.approx(sum(chosen for chosen, _ in moved) / 3, abs=1e-6)
    assert change["logps_rejected"]["mean"] == pytest.approx(-0.5, abs=1e-6)
    assert change["nll_chosen"]["mean"] == pytest.approx(-(1.0 - 0.4 - 0.5) / 4, abs=1e-6)


def test_weights_that_did_not_move_have_an_implicit_accuracy_of_one_half_and_no_change(tmp_path: Path):
    measured(Table(BEFORE), tmp_path, "baseline")
    found = measured(Table(BEFORE), tmp_path, "trained")
    assert found["trained"]["implicit"]["accuracy"]["mean"] == 0.5
    assert found["trained"]["implicit"]["margin"]["mean"] == 0
    low, high = (found["difference"]["accuracy"][edge] for edge in ("low", "high"))
    assert low < 0 < high


def test_a_measurement_during_the_run_has_no_difference(tmp_path: Path):
    measured(Table(BEFORE), tmp_path, "baseline")
    found = measured(Table(AFTER), tmp_path, "step 20")
    assert list(found) == ["step 20"]
    assert "implicit" in found["step 20"]
    assert json.loads((tmp_path / "step-20-scores.json").read_text())["tokens"] == [2, 1, 1, 1, 1, 1]


def test_no_more_pairs_than_asked_for_and_no_larger_batch_than_fits(tmp_path: Path):
    table, settings = Table(BEFORE), config()
    few = settings.evaluation.model_copy(update={"prompts": 2})
    small = settings.train.model_copy(update={"tokens_per_microbatch": 4})
    found = measured(table, tmp_path, "baseline", PAIRS * 5, evaluation=few, train=small)
    assert found["baseline"]["pairs"] == 2
    assert table.largest <= 4
    assert measured(table, tmp_path, "baseline", []) == {}


def labels(*rows: tuple[Example, bool]) -> list[LabelledExample]:
    return [LabelledExample(index=i, example=example, label=label) for i, (example, label) in enumerate(rows)]


def test_labelled_answers_are_told_apart_per_token_before_and_by_log_ratio_after(tmp_path: Path):
    rows = labels((answer(12), False), (answer(10, 11), True), (answer(13), True))
    before = HeldOutLabels(config(), Table(BEFORE), rows, 0)(tmp_path, "baseline")["baseline"]
    assert (before["answers"], before["desirable"], before["undesirable"]) == (3, 2, 1)
    assert before["auc"]["mean"] == 0.5  # -1.0 beats -1.5, -2.0 does not
    assert before["logps_desirable"]["mean"] == pytest.approx(-2.0)
    assert before["logps_undesirable"]["mean"] == pytest.approx(-1.5)
    assert "implicit" not in before

    after = HeldOutLabels(config(), Table(AFTER), rows, 0)(tmp_path, "trained")
    assert after["trained"]["auc"]["mean"] == 0.5
    assert after["trained"]["implicit"]["auc"]["mean"] == 1.0  # +1.0 and -0.4 against -0.5
    assert after["difference"]["auc"]["mean"] == 0.0
    assert after["difference"]["logps_desirable"]["mean"] == pytest.approx(0.3, abs=1e-6)


def test_one_class_alone_has_no_auc(tmp_path: Path):
    rows = labels((answer(10), True), (answer(12), True))
    found = HeldOutLabels(config(), Table(BEFORE), rows, 0)(tmp_path, "baseline")["baseline"]
    assert math.isnan(found["auc"]["mean"])
    assert (found["auc"]["low"], found["auc"]["high"]) == (0.0, 1.0)
    assert auc_interval([1.0], []).n == 0
