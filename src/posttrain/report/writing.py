"""Quality of the model's writing before and after a run, in words, and whether it got worse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posttrain.files import MOST_BYTES, Damaged, read_sealed_json
from posttrain.report.spans import Span, span
from posttrain.report.store import RunRecord, mapping, number
from posttrain.report.svg import percent
from posttrain.report.text import cut, escaped

MORE_REPETITION, MORE_ALIKE = 0.2, 0.3
"""Minimum growth of the share of repeated sequences, and of the share of prompts with another prompt's answer."""
DOUBLED = 0.693
"""Growth of the loss on plain English, in nats per token, that doubles its perplexity."""
KNOWS_ENGLISH = 3.0
"""Bits per byte on plain English up to which a model knows English; letter frequencies alone give more than 4."""
SHOWN, LONGEST = 4, 600
"""Number of prompts whose answers are shown, and maximum characters of each answer."""


def writes_worse(evaluation: Mapping[str, Any]) -> list[str]:
    """Return how the model writes clearly worse than before training; empty if it does not.

    The comparison uses answers to the same prompts and the same stretches of text. A change is clear if the interval of
    the difference is above 0 and the mean

        repetition grew by 0.2          and is at least 0.2 above the given answers of the data
        same       grew by 0.3          and is at least 0.3 above the given answers of the data: few distinct answers
        text_loss  grew by log 2        nats per token; only if the model knew English, at most 3 bits per byte

    Longer answers and more truncated answers do not count: good answers can be longer.
    """
    writing = mapping(evaluation.get("writing"))
    before, after, given, moved = (
        mapping(writing.get(name)) for name in ("baseline", "trained", "given", "difference")
    )
    found = []
    for name, least, words in (
        ("repetition", MORE_REPETITION, "its answers repeat themselves"),
        ("same", MORE_ALIKE, "it gives different prompts the same answer"),
    ):
        change, now = span(moved.get(name)), span(after.get(name))
        usual = number(given.get(name), 0.0)
        if change and now and change.low > 0 and change.mean >= least and now.mean >= usual + least:
            found.append(words)
    change, bits = span(moved.get("text_loss")), number(before.get("text_bits_per_byte"))
    if change and change.low > 0 and change.mean >= DOUBLED and bits is not None and bits <= KNOWS_ENGLISH:
        found.append("its perplexity on plain English has doubled")
    return found


def writing_sentences(evaluation: Mapping[str, Any]) -> list[str]:
    """Compare the writing before and after training; empty if it was not measured both times."""
    writing = mapping(evaluation.get("writing"))
    before, after = mapping(writing.get("baseline")), mapping(writing.get("trained"))
    parts = [
        f"{words} {_shown(name, old)} → {_shown(name, new)}"
        for name, words in (
            ("repetition", "repeated sequences of four tokens"),
            ("same", "prompts whose answer another prompt got, too,"),
            ("ended", "answers that ended"),
            ("length", "mean length in tokens"),
            ("text_loss", "loss on a page of plain English, in nats per token,"),
        )
        if (old := span(before.get(name))) and (new := span(after.get(name)))
    ]
    if not parts:
        return []
    count = number(writing.get("prompts"), 0)
    of = "training prompts" if writing.get("of") == "training prompts" else "held-out prompts"
    found = [f"How it writes, by greedy answers to {count:.0f} {of}: {', '.join(parts)}."]
    return found + [f"It writes worse: {reason}." for reason in writes_worse(evaluation)]


def _shown(name: str, found: Span) -> str:
    if name == "text_loss":
        return f"{found.mean:.2f}"
    return f"{found.mean:.0f}" if name == "length" else percent(found.mean)


def writing_samples_html(run: RunRecord) -> str:
    """Return answers to the same prompts before and after training, if the run has no rollouts; "" if none exist."""
    return "" if run.rollout_steps else before_and_after_html(run, "writing")


def before_and_after_html(run: RunRecord, kind: str) -> str:
    """Return the answers in evaluations/baseline-KIND.json and trained-KIND.json, prompt by prompt, as HTML."""
    old, new = (_answers(run, f"evaluations/{side}-{kind}.json") for side in ("baseline", "trained"))
    items = []
    for place, before in enumerate(old[:SHOWN]):
        after = new[place] if place < len(new) else {}
        answers = [("before training", before), *([("after training", after)] if after else [])]
        rows = "".join(
            f'<p class="facts">{when}</p><pre class="tokens" dir="auto" tabindex="0">{_text(answer.get("text"))}</pre>'
            for when, answer in answers
        )
        prompt = f'<pre class="prompt" dir="auto" tabindex="0">{_text(before.get("prompt"))}</pre>'
        items.append(f'<article class="group"><header>{prompt}</header><div class="row">{rows}</div></article>')
    return "\n".join(items)


def _text(value: Any) -> str:
    text, note = cut(str(value or ""), LONGEST)
    return (escaped(text) or '<span class="empty">(empty)</span>') + (f" {escaped(note)}" if note else "")


def _answers(run: RunRecord, file: str) -> list[Mapping[str, Any]]:
    try:
        found = read_sealed_json(run.folder, file, MOST_BYTES)
    except (Damaged, OSError, ValueError, RecursionError):
        return []
    answers = mapping(found).get("answers")
    return [answer for answer in answers if isinstance(answer, Mapping)] if isinstance(answers, list) else []
