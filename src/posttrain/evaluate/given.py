"""Measures a model on given answers: held-out pairs, labelled answers, ratings, steps, or demonstrations.

A run that learns from such data measures the same before and after training. Here it works for any model and any file,
without training.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, cast

from posttrain.config import RunConfig, load_config
from posttrain.data.dropped import Kept
from posttrain.data.examples import render_examples
from posttrain.data.forms import Kind, fits
from posttrain.data.given import where_the_run_is
from posttrain.data.labels import render_labels
from posttrain.data.pairs import render_pairs
from posttrain.data.prompts import Renderer
from posttrain.data.ratings import render_ratings
from posttrain.data.read import Row, read_rows
from posttrain.data.split import read_split
from posttrain.data.steps import render_steps
from posttrain.errors import ConfigError, DataError
from posttrain.evaluate.heldout_pairs import HeldOutLabels, HeldOutPolicyPairs
from posttrain.evaluate.heldout_scores import HeldOutPairs, HeldOutRatings, HeldOutScores, Subject
from posttrain.evaluate.heldout_steps import HeldOutSteps
from posttrain.evaluate.measure import HeldOutLoss, Measure, read_measured
from posttrain.evaluate.row_scores import first
from posttrain.evaluate.trained import run_in, trained_model
from posttrain.experience.rendering import longest_row
from posttrain.files import Damaged, read_sealed, write_sealed
from posttrain.functional.step_scores import aggregate
from posttrain.models.footprint import REWARD_TOKENS
from posttrain.models.load import LoadedModel
from posttrain.models.policy import load_policy, policy_forward
from posttrain.models.scoring import ScoringForward, scores_of_rows, scores_of_steps
from posttrain.report.heldout import measure_of
from posttrain.report.lines import evaluation_line
from posttrain.report.spans import show_change, span
from posttrain.report.store import mapping
from posttrain.rewards.model import load_model_reward

SCORED: tuple[Kind, ...] = ("pairs", "ratings", "steps")
LIKE: Mapping[Kind, str] = {"pairs": "simpo", "labels": "kto", "examples": "sft"}
"""Kind of rows -> the algorithm whose run would measure a language model this way. No measure depends on its loss."""


@dataclass(frozen=True, kw_only=True)
class GivenEvaluation:
    """The measurements of `model` on rows of this kind: the numbers that a run calls baseline or trained."""

    model: str
    kind: Kind
    measured: Mapping[str, Any]
    dropped: str = ""
    """A sentence about the rows that could not be used, and why; "" if there are none."""
    compared: Mapping[str, Any] = field(default_factory=dict)
    """For a run on its own rows: its `baseline` and the `difference`, or the reason why they are `lost`."""

    def to_json(self) -> dict[str, Any]:
        return {"model": self.model, "kind": self.kind, "dropped": self.dropped, **self.measured, **self.compared}

    def render(self) -> str:
        lines = [f"{self.model}: {evaluation_line(self.measured)}"]
        if before := mapping(self.compared.get("baseline")):
            lines.append(f"before training: {evaluation_line(before, self.measured)}")
            measure = measure_of(before, self.measured)
            if (change := span(mapping(self.compared.get("difference")).get(measure))) is not None:
                lines.append(f"difference: {show_change(measure, change)}, row by row")
        if "lost" in self.compared:
            lines.append(f"the measurement before training is not shown: {self.compared['lost']}")
        return "\n".join([*lines, self.dropped] if self.dropped else lines)


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """The model and the rows to measure it on, with the settings of its run, if it has one."""

    path: str
    kind: Kind
    rows: Sequence[Row]
    own: RunConfig | None
    most: int
    """Maximum number of usable rows to measure."""

    @property
    def data(self) -> dict[str, Any]:
        """The settings that decide how rows are rendered, and which rows are too long."""
        kept = {"system_prompt", "chat", "train_on", "max_length", "max_dropped"}
        return {} if self.own is None else self.own.data.model_dump(include=kept)

    @property
    def confidence(self) -> float:
        return 0.95 if self.own is None else self.own.evaluation.confidence


def kind_named(name: str | None) -> Kind | None:
    """Return the kind with this name. Raises ConfigError if there is none."""
    kinds: list[Kind] = list(dict.fromkeys([*LIKE, *SCORED]))
    if name is None:
        return None
    if name not in kinds:
        raise ConfigError(
            given=f"rows of kind {name!r}",
            allowed=", ".join(kinds),
            fix="Use one of these, or give a reward for prompts.",
        )
    return cast("Kind", name)


def learned_from_given(folder: str | PathLike[str]) -> bool:
    """Is this the folder of a run that learned from given answers, not from sampled ones?"""
    config = _config_of_run(run_in(Path(folder)))
    return config is not None and _kind_of_run(config) != "prompts"


def evaluate_given(
    model: str | PathLike[str], data: str | None = None, *, kind: Kind | None = None, max_rows: int | None = None
) -> GivenEvaluation:
    """Measure a model folder, or the newest checkpoint of a run, on `data` or on the rows that the run held out.

    `kind` is the kind of the rows, if the columns fit several: pairs, labels, examples, ratings or steps. A model with
    a score head is measured by its scores, a language model by its log-probabilities. Only the first `max_rows` rows
    are used. Raises ConfigError, DataError or ModelError.
    """
    model = os.fspath(model)
    run = run_in(Path(model))
    own = _config_of_run(run)
    if own is None and data is None:
        raise ConfigError(
            given=f"no data to evaluate {model} on",
            allowed="data with given answers; only a run folder has its own",
            fix="Give some: evaluate_given(model, data), or --data FILE.",
        )
    rows = _own_rows(run, own) if run and own and data is None else read_rows(str(data), split="eval")
    if not rows:
        raise DataError(
            given="the run held out no rows",
            allowed="at least one",
            fix="Give some: evaluate_given(run, data), or --data FILE.",
        )
    path = model if own is None or run is None else trained_model(run, own).path
    scores = _scores(path)
    known: tuple[Kind, ...] = SCORED if scores else tuple(LIKE)
    kind = kind or _kind_of(rows, known, own)
    if kind not in known:
        raise ConfigError(
            given=f"rows of kind {kind} for {model}, which {'scores answers' if scores else 'writes them'}",
            allowed=", ".join(known),
            fix=f"Set kind = {known[0]}, or evaluate another model.",
        )
    rows = rows if max_rows is None else rows[:max_rows]
    most = own.evaluation.prompts if own and data is None and max_rows is None else len(rows)
    subject = _Subject(path=path, kind=kind, rows=rows, own=own, most=most)
    measure, found = _of_scores(subject) if scores else _of_policy(subject)
    as_in_run = run is not None and data is None and max_rows is None
    with tempfile.TemporaryDirectory() as scratch:
        if as_in_run and run is not None and (kept := _keep_baseline(run, Path(scratch))):
            both = measure(Path(scratch), "trained")
            measured, compared = both["trained"], {"baseline": kept, **{k: both[k] for k in both if k != "trained"}}
        else:
            measured = measure(Path(scratch), "baseline")["baseline"]
            compared = {"lost": "it is not on file"} if as_in_run else {}
    return GivenEvaluation(model=model, kind=kind, measured=measured, dropped=found.dropped_summary, compared=compared)


def _own_rows(run: Path, own: RunConfig) -> Sequence[Row]:
    """Return the rows that the run held out, wherever its folder is now."""
    return read_split(where_the_run_is(own.data, run), own.seed).heldout


def _keep_baseline(run: Path, scratch: Path) -> Mapping[str, Any]:
    """Return the run's measurement before training, and copy the scores of its rows to `scratch`; empty if lost."""
    name = "baseline-scores.json"
    try:
        before = read_measured(run).get("baseline")
        write_sealed(scratch / name, read_sealed(run, f"evaluations/{name}"))
    except Damaged:
        return {}
    return mapping(before)


def _kind_of(rows: Sequence[Row], known: Sequence[Kind], own: RunConfig | None) -> Kind:
    """Return the kind of the rows: the kind that the run was trained on if it fits, else the first kind that fits."""
    likely: list[Kind] = list(known) if own is None else [_kind_of_run(own), *known]
    for kind in likely:
        if kind in known and fits(rows, kind):
            return kind
    return known[0]


def _of_policy(subject: _Subject) -> tuple[Measure, Kept]:
    """Return the measure of a language model by log-probabilities, with rows rendered as in its run."""
    kind, rows, own = subject.kind, subject.rows, subject.own
    same = {"attention", "precision", "device", "trust_remote_code", "chat_template_kwargs"}
    base = {} if own is None else own.model.model_dump(include=same)
    config = load_config(
        {
            "model": {**base, "path": subject.path},
            "algorithm": LIKE[kind],
            "data": {**subject.data, "train": "given"},
            "train": {"steps": 1},
            "evaluation": {"prompts": subject.most, "confidence": subject.confidence},
        }
    ).config
    loaded = load_policy(config)
    forward = policy_forward(config, loaded, config.algorithm.build())
    renderer = Renderer.of(config.data, loaded.tokenizer, config.model.chat_template_kwargs)
    limits = _limits(loaded, longest_row(config, loaded), config.data.max_dropped)
    if kind == "examples":
        found = render_examples(rows, renderer, eos_ids=loaded.eos_ids, **limits)
        return HeldOutLoss(config, forward, found.rows, loaded.pad_id), found
    if kind == "pairs":
        pairs = render_pairs(rows, renderer, eos_ids=loaded.eos_ids, **limits)
        return HeldOutPolicyPairs(config, forward, pairs.rows, loaded.pad_id), pairs
    judged = render_labels(rows, renderer, eos_ids=loaded.eos_ids, **limits)
    if judged.pairs is not None:
        return HeldOutPolicyPairs(config, forward, judged.pairs, loaded.pad_id), judged
    return HeldOutLabels(config, forward, judged.rows, loaded.pad_id), judged


def _of_scores(subject: _Subject) -> tuple[Measure, Kept]:
    """Return the measure of a reward model by its scores. The model folder says how rows are rendered."""
    reward = load_model_reward(subject.path, {})
    loaded, facts, rows = reward.loaded, reward.facts, subject.rows
    longest = min(loaded.context_length or sys.maxsize, subject.data.get("max_length") or sys.maxsize)
    limits = _limits(loaded, longest, subject.data.get("max_dropped", 0.5))
    batching = {"pad_id": loaded.pad_id, "tokens_per_microbatch": REWARD_TOKENS}
    found: Kept
    if subject.kind == "steps":
        found = render_steps(rows, reward.renderer, separator=facts.separator or "\n", **limits)
        how = partial(aggregate, how=facts.aggregate)
        forward = ScoringForward(loaded, scores_of_steps)
        heldout: Subject = HeldOutSteps(forward, first(found.rows, subject.most), how, **batching)
    elif subject.kind == "ratings":
        found = render_ratings(rows, reward.renderer, eos_ids=reward.eos_ids, **limits)
        forward = ScoringForward(loaded, scores_of_rows)
        heldout = HeldOutRatings(forward, first(found.rows, subject.most), facts, **batching)
    else:
        found = render_pairs(rows, reward.renderer, eos_ids=reward.eos_ids, **limits)
        heldout = HeldOutPairs(ScoringForward(loaded, scores_of_rows), first(found.rows, subject.most), **batching)
    return HeldOutScores(heldout, subject.confidence), found


def _limits(loaded: LoadedModel, max_length: int, max_dropped: float) -> dict[str, Any]:
    return {"max_length": max_length, "max_dropped": max_dropped, "what": loaded.named("the data")}


def _scores(path: str) -> bool:
    """Does the model in the folder have a score head?"""
    try:
        declared = json.loads((Path(path) / "config.json").read_text(encoding="utf-8")).get("architectures") or []
    except (OSError, ValueError):  # no model, or one of the Hub: loading it will report errors
        declared = []
    return any(name.endswith(("ForSequenceClassification", "ForTokenClassification")) for name in declared)


def _config_of_run(run: Path | None) -> RunConfig | None:
    return None if run is None else load_config(run / "config.yaml").config


def _kind_of_run(config: RunConfig) -> Kind:
    return "prompts" if config.sampled_pairs is not None else config.algorithm.build().data_kind
