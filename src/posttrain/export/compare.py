"""Compares the outputs of the exported model with the trained one's, and names the first token that differs.

The rules, at a tolerance of t nats (TOLERANCES, by the precision of the written weights):

- every weight that plain transformers has loaded equals the intended one bit for bit;
- the log-probability of each token that the trained model chose differs by at most t, a score by at most t;
- greedy tokens are equal. At the first different token, the lead of the trained model's best token over its second
  decides: up to t, rounding may swap the two, which is reported as a tie; above t, it is a mismatch;
- the tokenizer reads each prompt as the same ids, and the chat template renders it as the same text;
- the stop strings are the intended ones; generation does not stop at them, so answers are compared beyond them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from posttrain.errors import ExportError
from posttrain.export.probes import Expected

TOLERANCES = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.5, "q8_0": 0.5}
"""Precision -> tolerance in nats. docs/export.md has the largest measured differences: minimind2-small, stories15M,
SmolLM2-135M."""


@dataclass(frozen=True, kw_only=True)
class Tie:
    """A greedy token that differs because of rounding."""

    prompt: str
    token: int
    """Position in the answer, from 0."""
    trained: int
    exported: int
    gap: float
    """Lead of the trained model's token over its second best, in nats."""

    def __str__(self) -> str:
        return f"{self.prompt}, token {self.token}: {self.exported} for {self.trained}, a lead of {self.gap:.3g} nats"


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The result of the comparison."""

    prompts: int
    source: str
    tokens: int
    """Number of greedy tokens of the trained model whose log-probabilities were compared; 0 for a reward model."""
    identical: int
    """Number of prompts whose greedy tokens are all the same."""
    ties: tuple[Tie, ...]
    largest_difference: float
    """Largest difference of a log-probability, in nats, or of a score."""
    tolerance: float
    weights: int
    """Number of tensors that were compared bit for bit."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def facts(self) -> list[str]:
        """Return the result in words."""
        same = [f"{self.identical} of {self.prompts} give the same greedy tokens"] if self.tokens else []
        what = f"log-probabilities of {self.tokens} tokens" if self.tokens else f"scores of {self.prompts} rows"
        return [
            *same,
            f"{what} differ by at most {self.largest_difference:.2g} (allowed {self.tolerance:g})",
            f"{self.weights} tensors are equal bit for bit",
        ]


def compare(
    expected: Sequence[Expected],
    reply: Mapping[str, Any],
    digests: Mapping[str, str],
    *,
    dtype: str,
    source: str,
    stop_strings: Sequence[str] = (),
) -> Replay:
    """Compare the outputs. Raises ExportError that names the prompt and token, the weight, or the tokenizer's text."""
    tolerance, answers = TOLERANCES[dtype], reply["answers"]
    odd = _odd_weights(digests, reply["digests"])
    ties: list[Tie] = []
    largest = 0.0
    for one, answer in zip(expected, answers, strict=True):
        for difference, token in _differences(one, answer):
            largest = max(largest, difference)
            if not difference <= tolerance:  # also true for NaN
                raise _mismatch(one, token, answer, tolerance, odd)
        if (tie := _first_other_token(one, answer)) is not None:
            if not tie.gap <= tolerance:
                raise _other_token(tie, odd)
            ties.append(tie)
        _same_reading(one, answer)
    _same_stop_strings(stop_strings, reply["stop_strings"])
    if odd:
        raise ExportError(
            given=f"the exported folder holds other values than the trained model for {odd}",
            allowed="exactly the weights that were written",
            fix="Check the disk and its memory, then export again.",
        )
    return Replay(
        prompts=len(expected),
        source=source,
        tokens=sum(len(one.ids) for one in expected),
        identical=len(expected) - len(ties),
        ties=tuple(ties),
        largest_difference=largest,
        tolerance=tolerance,
        weights=len(digests),
    )


def _odd_weights(meant: Mapping[str, str], found: Mapping[str, str]) -> str:
    """Return the names of the weights that differ, in words; empty if none does."""
    odd = sorted({name for name in meant.keys() | found.keys() if meant.get(name) != found.get(name)})
    return ", ".join(odd[:3]) + (f" and {len(odd) - 3} more" if len(odd) > 3 else "")


def _differences(one: Expected, answer: Mapping[str, Any]) -> Iterator[tuple[float, int]]:
    """Yield (difference, token) of each log-probability, or of the score."""
    if "score" in answer:
        yield abs(answer["score"] - one.score), 0
        return
    for place, (meant, found) in enumerate(zip(one.logprobs, answer["logprobs"], strict=True)):
        yield abs(meant - found), place


def _first_other_token(one: Expected, answer: Mapping[str, Any]) -> Tie | None:
    generated = answer.get("generated", [])
    for place, meant in enumerate(one.ids):
        found = generated[place] if place < len(generated) else -1
        if found != meant:
            gap = one.gaps[place] if place < len(generated) else float("inf")
            return Tie(prompt=one.probe.name, token=place, trained=meant, exported=found, gap=gap)
    if len(generated) > len(one.ids):  # it continues although the trained model has ended
        place = len(one.ids)
        return Tie(prompt=one.probe.name, token=place, trained=-1, exported=generated[place], gap=float("inf"))
    return None


def _mismatch(one: Expected, token: int, answer: Mapping[str, Any], tolerance: float, odd: str) -> ExportError:
    if "score" in answer:
        where = f"{one.probe.name} is scored {answer['score']:.5g} by the exported model and {one.score:.5g}"
    else:
        found, meant = answer["logprobs"][token], one.logprobs[token]
        where = (
            f"{one.probe.name}, token {token} of its answer (id {one.ids[token]}) has log-probability {found:.5g} "
            f"in the exported model and {meant:.5g}"
        )
    return ExportError(
        given=f"{where} in the trained one{_weights(odd)}",
        allowed=f"a difference of at most {tolerance:g}",
        fix=_FIX,
    )


def _other_token(tie: Tie, odd: str) -> ExportError:
    names = {-1: "nothing"}
    meant, found = (names.get(i, f"token {i}") for i in (tie.trained, tie.exported))
    return ExportError(
        given=f"{tie.prompt}, token {tie.token} of its answer: the exported model says {found}, the trained one {meant}"
        + _weights(odd),
        allowed="the same greedy tokens, except for ties within the tolerance",
        fix=_FIX,
    )


def _weights(odd: str) -> str:
    return f"; its weights differ, too: {odd}" if odd else ""


_FIX = "Nothing was left behind. Export again. If it happens again, use another --to or --dtype, and report it."


def _same_reading(one: Expected, answer: Mapping[str, Any]) -> None:
    probe = one.probe
    checks = (
        ("reads as other ids", probe.tokens and list(probe.tokens), answer["tokens"]),
        ("renders by its chat template otherwise", probe.messages and probe.text, answer["rendered"]),
    )
    for what, meant, found in checks:
        if meant and found != meant:
            raise ExportError(
                given=f"{probe.name}, which the exported tokenizer {what}: {_part(found)} for {_part(meant)}",
                allowed="the tokenizer that the model was trained with",
                fix="This tokenizer cannot be written in that format; export with --to hf.",
            )


def _same_stop_strings(meant: Sequence[str], found: Sequence[str]) -> None:
    if list(found) != list(meant):
        raise ExportError(
            given=f"the exported model has stop_strings = {_part(list(found))}, the trained one {_part(list(meant))}",
            allowed="the stop strings that ended answers in training",
            fix=_FIX,
        )


def _part(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
