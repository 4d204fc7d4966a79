"""Measurements on held-out data and their wording, chosen by the keys of `evaluation.json` and not by the algorithm.

answers   sampled and scored            pairs     ranked by a policy (`ranked_by`) or by a reward model
loss      on given answers              labels    desirable answers separated from undesirable ones
ratings   predicted by a reward model   steps     judged by a process reward model
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from posttrain.report.calibration import calibration_sentences
from posttrain.report.spans import Span, show_change, show_span, show_value, span
from posttrain.report.store import mapping, number
from posttrain.report.svg import percent

Kind = Literal["answers", "loss", "policy pairs", "scored pairs", "labels", "ratings", "steps"]
LOWER_IS_BETTER = ("loss", "rmse")


class Words(NamedTuple):
    """The words for a kind of measurement."""

    what: str
    unit: str
    count: str
    """Key in `evaluation.json` of the number of units."""
    short: str
    """Short name, for plots and terminal lines."""


WORDS: dict[Kind, Words] = {
    "answers": Words("of greedy answers", "prompts", "prompts", "greedy"),
    "loss": Words("loss (nats per token, lower is better)", "examples", "prompts", "loss"),
    "policy pairs": Words(
        "pair accuracy (the chosen answer is likelier than the rejected one)", "pairs", "pairs", "pairs"
    ),
    "scored pairs": Words("accuracy: how often the chosen answer of a pair scored higher", "pairs", "pairs", "pairs"),
    "labels": Words(
        "AUC (how often a desirable answer is likelier per token than an undesirable one)", "answers", "answers", "AUC"
    ),
    "ratings": Words("error of predicted ratings (root mean square, lower is better)", "ratings", "ratings", "rmse"),
    "steps": Words("accuracy of judged steps", "answers", "answers", "steps"),
}
_TOLD_BY: tuple[tuple[str, Kind], ...] = (
    ("greedy", "answers"),
    ("ranked_by", "policy pairs"),
    ("pairs", "scored pairs"),
    ("ratings", "ratings"),
    ("steps", "steps"),
    ("desirable", "labels"),
    ("loss", "loss"),
)


def kind_of(*evaluations: Mapping[str, Any]) -> Kind:
    """Return the kind of measurement; `answers` by default."""
    for key, kind in _TOLD_BY:
        if any(key in found for found in evaluations):
            return kind
    return "answers"


def measure_of(*evaluations: Mapping[str, Any]) -> str:
    """Return the main measure: `loss`, `auc` or `rmse` by kind, `accuracy` for rewards on its scale, else `score`.

    Total rewards are on the scale of an accuracy if the greedy answers get 1 if they are right and else 0. With other
    scores, the share of right answers would leave out most of what changes. Without a verifier, no score may be below
    0, and the largest must be 1 or 0.
    """
    own = {"loss": "loss", "labels": "auc", "ratings": "rmse"}
    if (kind := kind_of(*evaluations)) in own:
        return own[kind]
    edges = [number(edge) for found in evaluations for edge in (found.get("score_range") or [])]
    seen = [edge for edge in edges if edge is not None]
    if not seen:
        return "accuracy"
    if any(map(_nobody_knows, evaluations)):
        return "score"
    marks = all(map(verifiers_of, evaluations)) or _are_marks(seen)
    return "accuracy" if marks and not any(map(_has_partial_credit, evaluations)) else "score"


def _nobody_knows(evaluation: Mapping[str, Any]) -> bool:
    """Do several rewards and no verifier judge the answers, so that nobody knows which are right?"""
    return evaluation.get("verifiers", []) is None


def verifiers_of(evaluation: Mapping[str, Any]) -> list[str]:
    """Return the labels of the rewards that decide which answers are right."""
    found = evaluation.get("verifiers")
    return [str(label) for label in found] if isinstance(found, list) else []


def _are_marks(seen: Sequence[float]) -> bool:
    return min(seen) >= 0 and (abs(max(seen) - 1) < 1e-6 or max(seen) == 0)


def _has_partial_credit(evaluation: Mapping[str, Any]) -> bool:
    """Do greedy answers have other scores than 0 and 1? Then their mean score differs from the share of right ones."""
    greedy = mapping(evaluation.get("greedy"))
    score, right = span(greedy.get("score")), span(greedy.get("accuracy"))
    return score is not None and right is not None and abs(score.mean - right.mean) > 1e-6


def full_marks(evaluation: Mapping[str, Any]) -> Span | None:
    """Return the share of right greedy answers if the score says more. Without a verifier, scores must lie between 0
    and 1, and answers with 1 are right."""
    edges = [number(edge) for edge in evaluation.get("score_range") or []]
    seen = [edge for edge in edges if edge is not None]
    on_scale = bool(verifiers_of(evaluation)) or (min(seen) >= 0 and max(seen) <= 1 + 1e-6 if seen else False)
    if not seen or not on_scale or _nobody_knows(evaluation) or not _has_partial_credit(evaluation):
        return None
    return span(mapping(evaluation.get("greedy")).get("accuracy"))


def full_mark_sentences(measure: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Say how many answers were right, or got a score of 1, if the verdict is about a score."""
    alike = verifiers_of(before) == verifiers_of(after)  # earlier versions counted another way
    if measure != "score" or not alike or not (full_marks(before) or full_marks(after)):
        return []
    old, new = (span(mapping(side.get("greedy")).get("accuracy")) for side in (before, after))
    if old is None or new is None:
        return []
    what = f"Right answers ({', '.join(judges)})" if (judges := verifiers_of(after)) else "Answers with a score of 1"
    return [f"{what}: {show_span('accuracy', old)} before, {show_span('accuracy', new)} after."]


def headline_span(evaluation: Mapping[str, Any], measure: str) -> Span | None:
    """Return the interval of an evaluation that the verdict is based on."""
    of_answers = mapping(evaluation.get("greedy"))
    return span(of_answers.get(measure) if of_answers else evaluation.get(measure))


def only_class(evaluation: Mapping[str, Any]) -> str:
    """Return the class of all labelled answers ("desirable" or "undesirable") if there is only one: no AUC; else ""."""
    present = [kind for kind in ("desirable", "undesirable") if number(evaluation.get(kind))]
    return present[0] if kind_of(evaluation) == "labels" and len(present) == 1 else ""


def confidence_of(evaluation: Mapping[str, Any]) -> str:
    return percent(number(evaluation.get("confidence")) or 0.95)


def comparison(
    measure: str, after: Mapping[str, Any], baseline: Span, trained: Span, difference: Span | None
) -> list[str]:
    """Compare the measurements before and after training, in sentences."""
    kind, level = kind_of(after), confidence_of(after)
    if kind == "answers":
        return [_of_answers(measure, baseline, trained, difference, level)]
    words = WORDS[kind]
    text = f"Held-out {words.what}: {show_value(measure, baseline.mean)} → {show_value(measure, trained.mean)}"
    if difference is not None and difference.finite:
        text += f" (difference {show_change(measure, difference).replace('interval', f'{level} interval')}"
        text += ")" if difference.low > 0 or difference.high < 0 else ", which contains 0)"
    text += f", on the same {trained.n or after.get(words.count)} {words.unit} before and after."
    apart = "do not overlap" if baseline.disjoint(trained) else "overlap"
    text += f" The {level} intervals of the two {apart}: {show_span(measure, baseline)}, {show_span(measure, trained)}."
    return [text, *_more(kind, after)]


def _of_answers(measure: str, baseline: Span, trained: Span, difference: Span | None, level: str) -> str:
    text = f"Held-out {measure} of greedy answers, {trained.n} prompts before and after. "
    if baseline.disjoint(trained):
        text += f"The {level} intervals do not overlap: chance in the choice of prompts does not explain the change."
    else:
        text += f"The {level} intervals overlap: on their own they do not show a change."
    if difference is not None and difference.finite:
        text += f" Prompt by prompt the change is {show_change(measure, difference)}"
        text += "." if difference.low > 0 or difference.high < 0 else ", which contains 0."
    return text


# --- more sentences for some kinds ------------------------------------------------------------------------------------


def _more(kind: Kind, after: Mapping[str, Any]) -> list[str]:
    known = {"policy pairs": _of_pairs, "labels": _of_labels, "loss": _of_loss}
    return known.get(kind, calibration_sentences)(after)


def _of_pairs(after: Mapping[str, Any]) -> list[str]:
    sentences = []
    implicit, per_token = span(mapping(after.get("implicit")).get("accuracy")), span(after.get("accuracy_per_token"))
    if implicit is not None:
        sentences.append(
            "By the implicit reward, the log-ratio to the model before training, "
            f"{show_span('accuracy', implicit)} of the pairs are in the right order; 50% is chance."
        )
    if per_token is not None:
        sentences.append(f"Ranked per token, so that length does not matter, it is {show_span('accuracy', per_token)}.")
    return sentences


def _of_labels(after: Mapping[str, Any]) -> list[str]:
    implicit = span(mapping(after.get("implicit")).get("auc"))
    if implicit is None:
        return []
    return [f"By the log-ratio to the model before training the AUC is {show_span('auc', implicit)}; 0.5 is chance."]


def _of_loss(after: Mapping[str, Any]) -> list[str]:
    perplexity, accuracy = span(after.get("perplexity")), span(after.get("token_accuracy"))
    sentences = [f"Perplexity after training: {show_span('perplexity', perplexity)}."] if perplexity else []
    if accuracy is not None:
        shown = show_span("accuracy", accuracy)
        sentences.append(f"The right token is the most likely one at {shown} of the trained positions.")
    return sentences
