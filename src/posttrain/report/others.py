"""Forgetting in words: the model's answers to unrelated prompts before and after a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posttrain.report.spans import Span, span
from posttrain.report.store import mapping, number
from posttrain.report.svg import percent
from posttrain.report.writing import MORE_ALIKE


def forgot(evaluation: Mapping[str, Any]) -> list[str]:
    """Return how the model has clearly changed on prompts that it was not trained on; empty if it has not.

    drift    more than evaluation.max_drift, in nats per token of its former answers
    same     grew by 0.3, with an interval above 0: it gives different prompts the same answer
    """
    others = mapping(evaluation.get("others"))
    drift, bound = span(others.get("drift")), number(others.get("max_drift"))
    found = []
    if drift is not None and bound is not None and drift.mean > bound:
        found.append(
            f"its former answers to other prompts became less likely by {_nats(drift)}, which exceeds the bound "
            f"of {bound:g}"
        )
    alike = span(mapping(others.get("difference")).get("same"))
    if alike is not None and alike.low > 0 and alike.mean >= MORE_ALIKE:
        found.append("it gives different prompts the same answer")
    return found


def kept(evaluation: Mapping[str, Any]) -> bool:
    """Is the drift on other prompts, with its whole interval, within the bound? A drift of 0 in each text has no
    interval: the model is the same."""
    others = mapping(evaluation.get("others"))
    drift, bound = span(others.get("drift")), number(others.get("max_drift"))
    if drift is None or bound is None or forgot(evaluation):
        return False
    return drift.high <= bound or (drift.mean == 0 and not drift.finite)


def others_sentences(evaluation: Mapping[str, Any]) -> list[str]:
    """Compare the answers before and after training; empty if they were not measured both times."""
    others = mapping(evaluation.get("others"))
    drift, bound, unchanged = (
        span(others.get("drift")),
        number(others.get("max_drift")),
        number(others.get("unchanged")),
    )
    if drift is None or bound is None or unchanged is None:
        return []
    lengths = [span(mapping(others.get(side)).get("length")) for side in ("baseline", "trained")]
    longer = "".join(f", their mean length {a.mean:.0f} → {b.mean:.0f} tokens" for a, b in [lengths] if a and b)
    count = number(others.get("prompts"), 0)
    return [
        f"Other prompts, {count:.0f} that training never saw: the former answers became less likely by {_nats(drift)} "
        f"(bound {bound:g}); {percent(unchanged)} are word for word as before{longer}."
    ]


def _nats(drift: Span) -> str:
    between = f"{drift.low:.3f} to {drift.high:.3f}" if drift.finite else "no interval"
    return f"{drift.mean:.3f} nats per token ({between})"
