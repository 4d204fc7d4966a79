"""How the model writes before and after a run, in words, and whether its writing got worse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posttrain.files import Damaged, read_sealed_json
from posttrain.report.spans import Span, span
from posttrain.report.store import RunRecord, mapping, number
from posttrain.report.svg import percent
from posttrain.report.text import cut, escaped

MORE_REPETITION, MORE_ALIKE = 0.2, 0.3
"""By how much the share of repeated sequences, and that of prompts with the answer of another one, has to grow."""
DOUBLED = 0.693
"""Nats per token: the perplexity on plain English has doubled."""
KNOWS_ENGLISH = 3.0
"""Bits per byte on plain English; the frequencies of letters alone give more than 4."""
SHOWN, LONGEST = 4, 600
"""Prompts of which both answers are shown, and characters of each."""


def writes_worse(evaluation: Mapping[str, Any]) -> list[str]:
    """In what the model writes clearly worse than before training; empty where it does not.

    Compared are answers to the same prompts and the same stretches of text. Each of these is clear where the interval
    of the difference lies above 0 and the mean

        repetition grew by 0.2          to 0.2 more than the answers have that the data gives
        same       grew by 0.3          to 0.3 more than the answers have that the data gives: few answers to everything
        text_loss  grew by log 2        nats per token; only of a model that knew English, at most 3 bits per byte

    Longer answers, and answers that are cut more often, are none of these: good ones can be longer.
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
    """Before against after; empty where it was not measured twice."""
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
    """Answers before and after training to the same prompts, of a run that samples none; "" where there are none."""
    return "" if run.rollout_steps else before_and_after_html(run, "writing")


def before_and_after_html(run: RunRecord, kind: str) -> str:
    """The answers of evaluations/baseline-KIND.json and trained-KIND.json, prompt by prompt."""
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
        found = read_sealed_json(run.folder, file)
    except (Damaged, OSError, ValueError, RecursionError):
        return []
    answers = mapping(found).get("answers")
    return [answer for answer in answers if isinstance(answer, Mapping)] if isinstance(answers, list) else []
