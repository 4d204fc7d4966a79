"""Why engine and trainer log-probabilities differ: a series of questions, until an answer explains the differences.

    weights       does the engine hold other tensors than the trained ones?           its hashes, asked now
    cache         does a prompt that it has read before get other numbers?            one request, with two cache salts
    temperature   do they fit another temperature?                                    least squares over temperatures
    truncation    do they fit top-k, top-p or min-p?                                  log of the mass that is kept
    template      do they fit a prompt that is read in another way?                   the trainer scores such prompts
    versions      do they fit weights that were published before?                     the trainer scores with those
    precision     are they as large, and as even in sign, as rounding errors?         it scores in another precision

The first two answers are proofs. The next four are laws that predict each number: among those that fit, the one with
the smallest remainder is the cause. Only the size of rounding can be predicted, so it comes last. The trainer must have
the weights that drew the tokens, so rows are examined before it learns from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from posttrain.functional.engine_laws import Law, at_temperature, fit_temperature, fit_truncation
from posttrain.watch.rounding import Level

CauseKind = Literal[
    "weights", "cache", "temperature", "truncation", "template", "versions", "precision", "unknown", "none"
]
MOST = 0.9
"""Share of the tokens that an explanation must fit."""
LEFT = 0.3
"""Share of the mean difference that an explanation may leave unexplained."""
ROUNDING = 5.0
"""Factor, up or down, within which the differences count as having the size of rounding."""
LEANING = 0.4
"""Largest |mean difference| relative to the mean size, because rounding goes both ways."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A completion as an engine drew it."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """The engine's log-probability of each token when it drew it."""
    places: tuple[int, ...]
    """Indices in `ids` of the tokens that the present weights drew."""


class Score(Protocol):
    """`[N, V]` log-probabilities at temperature 1 for the places of the rows, one row after the other."""

    def __call__(self, rows: Sequence[Row]) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """The ways in which the trainer can score rows."""

    present: Score
    """Scores with the weights that drew the rows."""
    rounded: Score | None
    """Scores with the same weights in another precision; None if there is no memory for it."""
    earlier: Mapping[int, Score] = field(default_factory=dict)
    """Scores with the weights of earlier published versions."""
    readings: Mapping[str, Callable[[tuple[int, ...]], tuple[int, ...]]] = field(default_factory=dict)
    """Other ways in which prompts may be read, by description, for example "with <bos> in front"."""
    temperature: float = 1.0
    """The temperature at which the engine was asked to draw."""


@dataclass(frozen=True, kw_only=True)
class Answered:
    """An engine's answer to questions about weights and cache, which come on top of its sampling requests."""

    engine: str
    wrong_weights: str = ""
    """The problem with the tensors that the engine holds now; empty if there is none."""
    fresh: tuple[float, ...] = ()
    """Log-probabilities of tokens that the engine drew, requested again with an unused cache salt."""
    cached: tuple[float, ...] = ()
    """Log-probabilities of the same tokens, requested with the cache salt of the rows."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """The explanation of the differences."""

    kind: CauseKind
    text: str
    """The explanation in words, with numbers."""
    fix: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)


def find_cause(rows: Sequence[Row], trainer: Trainer, engines: Sequence[Answered], level: Level) -> Cause:
    """The cause of the differences in these rows.

    The kind is "none" if rounding of this `level` explains them, and "unknown" if no question does."""
    rows = [row for row in rows if row.places]
    whole = _Differences.of(rows, trainer)
    touched = whole.touched(level)
    if (proof := _proof(engines, level.p99)) is not None:
        return proof
    if not touched:
        return Cause(kind="none", text="for these tokens the engine gives the trainer's numbers")
    found = whole if len(touched) == len(rows) else _Differences.of([rows[row] for row in touched], trainer)
    laws = list(_laws(found, trainer))
    holding = [law for law in laws if _explains(law.residual_N, found.nats_N, level.p99)]
    rounding_N = found.rounding(trainer)
    evidence = {
        "rows": len(rows),
        "touched": len(touched),
        "tokens": len(found.nats_N),
        "mean": float(found.nats_N.mean()),
        "mean_abs": float(found.nats_N.abs().mean()),
        "above_trainer": float((found.nats_N[found.nats_N.abs() > level.mean] > 0).float().mean()),
        "rounding": None if rounding_N is None else float(rounding_N.abs().mean()),
        "left": {f"{law.name} {law.value:.6g}": float(law.residual_N.abs().mean()) for law in laws},
    }
    if holding:
        law = min(holding, key=lambda one: one.rms)
        kind, text, fix = _in_words(law, trainer)
        left = f"which leaves {float(law.residual_N.abs().mean()):.2g} of {evidence['mean_abs']:.2g} nats"
        return Cause(kind=kind, text=f"{text}, {left}", fix=fix, evidence=evidence | {"value": law.value})
    if rounding_N is not None and _is_rounding(found.nats_N, rounding_N):
        return Cause(
            kind="precision",
            text=f"the differences go both ways and have the size of rounding: {evidence['mean_abs']:.2g} nats, and "
            f"another precision moves the trainer's own numbers by {evidence['rounding']:.2g}",
            fix="Let engine and trainer compute in the same precision, for weights, keys and values. With a "
            "correction (algorithm.correction = auto), rounding of this size does no harm.",
            evidence=evidence,
        )
    return Cause(kind="unknown", text=_unexplained(evidence, engines), fix=UNKNOWN, evidence=evidence)


UNKNOWN = (
    "Compare the engine's options with those of an engine that the run starts itself, and ask it for a single row."
)


@dataclass(frozen=True, kw_only=True)
class _Differences:
    rows: Sequence[Row]
    logprobs_NV: Tensor
    tokens_N: Tensor
    trainer_N: Tensor
    """The trainer's log-probabilities at the temperature of the run."""
    engine_N: Tensor
    nats_N: Tensor
    """Engine minus trainer, in nats."""

    @staticmethod
    def of(rows: Sequence[Row], trainer: Trainer) -> _Differences:
        logprobs_NV = trainer.present(rows)
        tokens_N = torch.tensor([row.ids[place] for row in rows for place in row.places], device=logprobs_NV.device)
        engine_N = torch.tensor([row.logprobs[place] for row in rows for place in row.places]).to(logprobs_NV)
        trainer_N = at_temperature(logprobs_NV, tokens_N, trainer.temperature)
        return _Differences(
            rows=rows,
            logprobs_NV=logprobs_NV,
            tokens_N=tokens_N,
            trainer_N=trainer_N,
            engine_N=engine_N,
            nats_N=engine_N - trainer_N,
        )

    def touched(self, level: Level) -> list[int]:
        """The rows with differences that rounding does not explain. The other rows may come from another engine, or
        from a prompt that is not in its cache."""
        own = self.nats_N.abs().split([len(row.places) for row in self.rows])
        return [number for number, nats_n in enumerate(own) if nats_n.mean() > level.mean or nats_n.max() > level.p99]

    def rounding(self, trainer: Trainer) -> Tensor | None:
        """The changes of the trainer's log-probabilities in another precision; None without memory for them."""
        if trainer.rounded is None:
            return None
        return at_temperature(trainer.rounded(self.rows), self.tokens_N, trainer.temperature) - self.trainer_N


def _proof(engines: Sequence[Answered], tolerance: float) -> Cause | None:
    """A cause that an engine's own answers prove; None if there is none."""
    for one in engines:
        if one.wrong_weights:
            return Cause(
                kind="weights",
                text=f"{one.engine} does not hold the trained weights: {one.wrong_weights}",
                fix="Something wrote to its weights after they were loaded: does another program publish to it?",
            )
    for one in engines:
        apart = [abs(old - new) for old, new in zip(one.cached, one.fresh, strict=True)]
        if sum(nats > tolerance for nats in apart) > (1 - MOST) * len(apart):
            return Cause(
                kind="cache",
                text=f"{one.engine} gives other numbers for a prompt that it has read before: the log-probability "
                f"of a token moves by up to {max(apart):.3g} nats with the salt of its cache",
                fix="It reuses keys and values of other weights: start the server without prefix caching, and "
                "leave rollout.keep_cache off.",
                evidence={"largest": max(apart)},
            )
    return None


def _laws(found: _Differences, trainer: Trainer) -> Sequence[Law]:
    laws = [
        fit_temperature(found.logprobs_NV, found.tokens_N, found.engine_N),
        fit_truncation(found.logprobs_NV, found.tokens_N, found.engine_N, trainer.temperature),
    ]
    for words, read in trainer.readings.items():
        rows = [replace(row, prompt_ids=read(row.prompt_ids)) for row in found.rows]
        if rows != list(found.rows) and all(row.prompt_ids for row in rows):
            laws.append(_scored(words, 0.0, trainer.present(rows), found, trainer))
    for version, score in trainer.earlier.items():
        laws.append(_scored("version", version, score(found.rows), found, trainer))
    return laws


def _scored(name: str, value: float, logprobs_NV: Tensor, found: _Differences, trainer: Trainer) -> Law:
    says_N = at_temperature(logprobs_NV, found.tokens_N, trainer.temperature)
    return Law(name, value, found.engine_N - says_N)


def _explains(residual_N: Tensor, nats_N: Tensor, tolerance: float) -> bool:
    """Does a law leave nearly all tokens within rounding, and only a small part of the difference?"""
    close = float(residual_N.abs().quantile(MOST)) <= max(tolerance, (1 - MOST) * float(nats_N.abs().quantile(MOST)))
    return close and float(residual_N.abs().mean()) <= LEFT * float(nats_N.abs().mean())


def _is_rounding(nats_N: Tensor, rounding_N: Tensor) -> bool:
    size, expected = float(nats_N.abs().mean()), float(rounding_N.abs().mean())
    return expected / ROUNDING <= size <= expected * ROUNDING and abs(float(nats_N.mean())) <= LEANING * size


def _in_words(law: Law, trainer: Trainer) -> tuple[CauseKind, str, str]:
    run = f"{trainer.temperature:g}"
    if law.name == "temperature":
        raw = abs(law.value - 1) < 0.005 and trainer.temperature != 1
        return (
            "temperature",
            f"the numbers belong to temperature {law.value:.3g}, but the run draws at {run}",
            "Start the server with --logprobs-mode processed_logprobs."
            if raw
            else "Make sure that nothing between run and engine changes sampling.temperature: a default of the "
            "server, a generation_config.json, a proxy.",
        )
    if law.name in ("top_k", "top_p", "min_p"):
        return (
            "truncation",
            f"the numbers belong to {law.name} = {law.value:.3g}, but the run draws from the whole distribution",
            "Start the server with --generation-config vllm, so that no default of the model truncates.",
        )
    if law.name == "version":
        return (
            "versions",
            f"the numbers belong to version {law.value:.0f}, which was published earlier",
            "The engine reports that newer weights drew these tokens, but it computes with older ones, or with "
            "their keys and values.",
        )
    return (
        "template",
        f"the numbers belong to prompts that are read {law.name}",
        "The engine must read exactly the ids that it is sent: no template, no special token, no second tokenizer.",
    )


def _unexplained(evidence: Mapping[str, Any], engines: Sequence[Answered]) -> str:
    least = min(evidence["left"], key=evidence["left"].get)
    asked = ", ".join(one.engine for one in engines)
    return (
        f"no question explains them: {evidence['above_trainer']:.0%} of the tokens that differ are likelier to the "
        f"engine, the closest law ({least}) leaves {evidence['left'][least]:.2g} of {evidence['mean_abs']:.2g} nats, "
        + (
            "and there was no memory to ask for rounding and earlier weights"
            if evidence["rounding"] is None
            else f"and rounding moves the trainer by {evidence['rounding']:.2g}"
        )
        + (f". {asked}: weights and cache are right" if asked else "")
    )
