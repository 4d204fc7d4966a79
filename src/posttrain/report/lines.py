"""Text of a held-out result on one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posttrain.report.heldout import WORDS, full_marks, headline_span, kind_of, measure_of, only_class, verifiers_of
from posttrain.report.spans import show_span, show_value, span
from posttrain.report.store import mapping, number
from posttrain.report.svg import compact, percent


def short_line(evaluation: Mapping[str, Any], *others: Mapping[str, Any]) -> str:
    """Return the main measure of a result. `others` help to choose it, so that its name is the same through a run."""
    measure = measure_of(evaluation, *others)
    found = headline_span(evaluation, measure)
    if found is None:
        return f"no AUC, all answers are {only}" if (only := only_class(evaluation)) else "no score"
    return f"{measure} {show_span(measure, found)}"


def evaluation_line(evaluation: Mapping[str, Any], *others: Mapping[str, Any]) -> str:
    kind, parts = kind_of(evaluation), [short_line(evaluation, *others)]
    at_k = mapping(mapping(evaluation.get("sampled")).get("pass@k"))
    for k in list(at_k)[-1:]:
        mean = number(mapping(at_k[k]).get("mean"))
        if mean is not None and measure_of(evaluation, *others) == "accuracy":
            parts.append(f"pass@{k} {percent(mean)}")
    if (full := full_marks(evaluation)) is not None:
        parts.append(f"{'right' if verifiers_of(evaluation) else 'full marks'} {percent(full.mean)}")
    for label, found in mapping(evaluation.get("check")).items():
        mean = number(mapping(found).get("mean"))
        if mean is not None:
            parts.append(f"check {label} {compact(mean)}")
    parts += _also(evaluation)
    words = WORDS[kind]
    parts.append(f"{evaluation.get(words.count, '?')} {words.unit}")
    unscored = number(evaluation.get("unscored"), 0)
    return ", ".join(parts) + (f", {unscored:.0f} answers unscored" if unscored else "")


def _also(evaluation: Mapping[str, Any]) -> list[str]:
    """Return further numbers of a run on given answers."""
    implicit = mapping(evaluation.get("implicit"))
    shown = [
        ("margin", "score", span(evaluation.get("margin"))),
        ("implicit accuracy", "accuracy", span(implicit.get("accuracy"))),
        ("implicit AUC", "auc", span(implicit.get("auc"))),
        ("perplexity", "score", span(evaluation.get("perplexity"))),
        ("right tokens", "accuracy", span(evaluation.get("token_accuracy"))),
    ]
    return [f"{label} {show_value(form, found.mean)}" for label, form, found in shown if found is not None]
