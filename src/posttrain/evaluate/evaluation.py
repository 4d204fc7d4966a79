"""The result of an evaluation: numbers with intervals, and the answers behind them."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.files import Damaged, open_sealed, write_atomically
from posttrain.functional.intervals import Interval, paired_interval
from posttrain.rewards.scores import CORRECT_AT

if TYPE_CHECKING:
    from posttrain.rewards.judge import Judgement


Write = Callable[[Path, str], object]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One completion and its scores."""

    text: str
    ids: tuple[int, ...]
    finish_reason: str
    score: float | None
    """Total reward; None if it could not be computed."""
    parts: Mapping[str, float | None] = field(default_factory=dict)
    """Each reward by label; None if it does not apply to the answer."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """The reason of each reward's verdict by label, for rewards that give one."""
    check: Mapping[str, float | None] = field(default_factory=dict)
    """Scores of the independent check, which training never sees, by label."""
    vote: str | None = None
    """The normalised answer that the majority vote counts; None if no answer could be extracted."""
    right: bool | None = None
    """What `RewardSet.is_right` says; None in answers of earlier versions, which are right from a total of 1."""

    @property
    def correct(self) -> bool:
        if self.right is None:
            return self.score is not None and self.score >= CORRECT_AT
        return self.right and self.score is not None

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length"


@dataclass(frozen=True, kw_only=True)
class Record:
    """The answers to one held-out prompt."""

    index: int
    """Index of the row in the dataset, the same before and after training."""
    prompt: str
    greedy: Answer
    samples: tuple[Answer, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Held-out results. Every interval is over prompts; its `n` is the number of prompts with a value.

    Answers without a score are left out and counted in `unscored`. They never count as 0.
    """

    prompts: int
    samples: int
    """Sampled answers per prompt, in addition to the greedy one."""
    confidence: float
    temperature: float
    top_p: float
    max_completion_length: int
    seed: int
    greedy_score: Interval
    greedy_accuracy: Interval
    sampled_score: Interval | None = None
    pass_at_k: Mapping[int, Interval] = field(default_factory=dict)
    majority_at_k: Mapping[int, Interval] = field(default_factory=dict)
    mean_length: float
    """Mean tokens of a greedy answer."""
    truncated: float
    """Share of greedy answers that reached `max_completion_length`."""
    sampled_mean_length: float = math.nan
    sampled_truncated: float = math.nan
    rewards: Mapping[str, Interval] = field(default_factory=dict)
    """Each reward by label, over greedy answers."""
    check: Mapping[str, Interval] = field(default_factory=dict)
    """The independent check by label, over greedy answers."""
    unscored: int = 0
    """Number of answers, greedy and sampled, without a score."""
    score_range: tuple[float, float] = (math.nan, math.nan)
    """Lowest and highest score: shows whether `accuracy` is meaningful without a verifier."""
    verifiers: tuple[str, ...] | None = ()
    """`RewardSet.verifiers`: the rewards that decide which answers are right. None if nobody knows."""
    errors: tuple[str, ...] = ()
    """Error messages of the rewards, each once."""
    tools: tuple[str, ...] = ()
    """What was wrong with the tools whose calls all failed."""
    records: tuple[Record, ...] = field(default=(), repr=False, compare=False)
    """The answers themselves; not part of `to_json`, see `write_answers`."""
    before: Evaluation | None = field(default=None, repr=False, compare=False)
    """The run's evaluation on these prompts before training, if a run is evaluated with its own settings."""
    lost: str = field(default="", repr=False, compare=False)
    """Why a run has no `before`; empty if it has one."""
    judgements: tuple[Judgement, ...] = field(default=(), repr=False, compare=False)
    """Questions to judges and their answers; not part of `to_json`, see `write_judgements`."""

    @property
    def pass_at_1(self) -> Interval:
        """Share of correct sampled answers, or of greedy answers if nothing was sampled."""
        return self.pass_at_k.get(1, self.greedy_accuracy)

    def to_json(self) -> dict[str, Any]:
        """Return plain dicts and numbers, ready for `json.dumps`. Non-finite numbers become None."""
        sampled = {
            "pass@1": interval_to_json(self.pass_at_k.get(1)),
            "pass@k": {str(k): interval_to_json(interval) for k, interval in self.pass_at_k.items()},
            "majority@k": {str(k): interval_to_json(interval) for k, interval in self.majority_at_k.items()},
            "score": interval_to_json(self.sampled_score),
            "mean_length": _finite(self.sampled_mean_length),
            "truncated": _finite(self.sampled_truncated),
        }
        return {
            "prompts": self.prompts,
            "samples": self.samples,
            "confidence": self.confidence,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_completion_length": self.max_completion_length,
            "seed": self.seed,
            "greedy": {
                "score": interval_to_json(self.greedy_score),
                "accuracy": interval_to_json(self.greedy_accuracy),
            },
            "sampled": sampled if self.samples else {},
            "mean_length": _finite(self.mean_length),
            "truncated": _finite(self.truncated),
            "rewards": {label: interval_to_json(interval) for label, interval in self.rewards.items()},
            "check": {label: interval_to_json(interval) for label, interval in self.check.items()},
            "unscored": self.unscored,
            "score_range": [_finite(edge) for edge in self.score_range],
            "verifiers": None if self.verifiers is None else list(self.verifiers),
            "errors": list(self.errors),
            **({"tools": list(self.tools)} if self.tools else {}),
            **self._compared(),
        }

    def _compared(self) -> dict[str, Any]:
        if self.before is None:
            return {"lost": self.lost} if self.lost else {}
        changes = paired_difference(self.before, self)
        difference = {name: interval_to_json(interval) for name, interval in changes.items()}
        return {"baseline": self.before.to_json(), "difference": difference}

    @staticmethod
    def from_json(data: Any) -> Evaluation:
        """Return the Evaluation of a `to_json`, without its answers. Raises `Damaged` for anything else."""
        try:
            return Evaluation._from_json(data)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            raise Damaged(f"no measurement: {type(error).__name__}: {error}") from error

    @staticmethod
    def _from_json(data: Mapping[str, Any]) -> Evaluation:
        sampled = data["sampled"]
        return Evaluation(
            prompts=_count(data["prompts"]),
            samples=_count(data["samples"]),
            confidence=data["confidence"],
            temperature=data["temperature"],
            top_p=data["top_p"],
            max_completion_length=data["max_completion_length"],
            seed=data["seed"],
            greedy_score=_interval_from_json(data["greedy"]["score"]),
            greedy_accuracy=_interval_from_json(data["greedy"]["accuracy"]),
            sampled_score=_interval_from_json(sampled["score"]) if sampled else None,
            pass_at_k={int(k): _interval_from_json(i) for k, i in sampled.get("pass@k", {}).items()},
            majority_at_k={int(k): _interval_from_json(i) for k, i in sampled.get("majority@k", {}).items()},
            mean_length=_number(data["mean_length"]),
            truncated=_number(data["truncated"]),
            sampled_mean_length=_number(sampled.get("mean_length")),
            sampled_truncated=_number(sampled.get("truncated")),
            rewards={label: _interval_from_json(i) for label, i in data["rewards"].items()},
            check={label: _interval_from_json(i) for label, i in data["check"].items()},
            unscored=_count(data["unscored"]),
            score_range=(_number(data["score_range"][0]), _number(data["score_range"][1])),
            verifiers=None if (found := data.get("verifiers", [])) is None else tuple(map(str, found)),
            errors=tuple(data["errors"]),
            tools=tuple(map(str, data.get("tools", ()))),
        )

    def write_answers(self, path: Path | str, write: Write = write_atomically) -> Path:
        """Write one JSON line per prompt: the prompt, its greedy answer and its samples, with their scores."""
        lines = (json.dumps(asdict(record), ensure_ascii=False) for record in self.records)
        write(Path(path), "".join(line + "\n" for line in lines))
        return Path(path)

    def write_judgements(self, path: Path | str, write: Write = write_atomically) -> Path | None:
        """Write one JSON line per judgement; no file, and None, if there are none."""
        if not self.judgements:
            return None
        lines = (json.dumps(judgement.to_json(), ensure_ascii=False) for judgement in self.judgements)
        write(Path(path), "".join(line + "\n" for line in lines))
        return Path(path)

    @staticmethod
    def read_answers(path: Path | str) -> tuple[Record, ...]:
        """Read a file of `write_answers`. Raises `Damaged` for a file that holds anything else."""
        return tuple(Evaluation.each_record(path))

    @staticmethod
    def each_record(path: Path | str) -> Iterator[Record]:
        """Read a file of `write_answers` one prompt at a time, because all long answers together need much memory.
        Raises `Damaged` as `read_answers` does."""
        path = Path(path)
        try:
            with open_sealed(path.parent, path.name) as lines:
                for line in lines:
                    if content := line.rstrip(b"\n"):
                        yield _record(json.loads(content.decode("utf-8")))
        except Damaged:
            raise
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise Damaged(f"{path.name} holds no answers ({type(error).__name__}: {error})") from error

    @property
    def has_full_mark(self) -> bool:
        """Can answers be right? They can if a verifier says so, or if there is one reward and 1 is its highest score. A
        learned score, for example, has no such mark, and its answers are neither right nor wrong."""
        low, high = self.score_range
        if self.verifiers is None:
            return False
        return bool(self.verifiers) or math.isnan(high) or (low >= 0 and (abs(high - 1) < 1e-6 or high == 0))

    @property
    def has_partial_credit(self) -> bool:
        """Do greedy answers have scores other than 0 for wrong and 1 for right? Then the score decides what improved.
        (`measure_of` of the report decides in the same way.)"""
        return abs(self.greedy_score.mean - self.greedy_accuracy.mean) > 1e-6

    def rows(self) -> list[tuple[str, Interval]]:
        """Return (name, interval) of each measurement, in reading order. A score that equals the accuracy appears once;
        shares of right answers appear only if answers can be right."""
        found = [("greedy accuracy", self.greedy_accuracy)] if self.has_full_mark else []
        if not found or self.greedy_score != self.greedy_accuracy:
            found.append(("greedy score", self.greedy_score))
        if self.has_full_mark:
            found += [(f"pass@{k}", interval) for k, interval in self.pass_at_k.items()]
            found += [(f"majority@{k}", interval) for k, interval in self.majority_at_k.items() if k > 2]
        if self.sampled_score is not None and (not self.has_full_mark or self.sampled_score != self.pass_at_1):
            found.append(("sampled score", self.sampled_score))
        found += [(f"reward: {label}", interval) for label, interval in self.rewards.items() if len(self.rewards) > 1]
        return found + [(f"check: {label}", interval) for label, interval in self.check.items()]

    def render(self) -> str:
        """Return plain text, one line per number."""
        lines = [f"{name:<24} {_show(interval)}" for name, interval in [*self.rows(), *self._change()]]
        lost = [f"the measurement before training is not shown: {self.lost}"] if self.lost else []
        return "\n".join([self._caption(), *lines, *lost])

    def _change(self) -> list[tuple[str, Interval]]:
        """Return the main measure before training, and its paired difference over prompts."""
        if self.before is None:
            return []
        both = (self.before, self)
        right = any(one.has_full_mark for one in both) and not any(one.has_partial_credit for one in both)
        name = "accuracy" if right else "score"
        before = self.before.greedy_accuracy if name == "accuracy" else self.before.greedy_score
        return [(f"  before training: {name}", before), ("  difference", paired_difference(self.before, self)[name])]

    def _repr_html_(self) -> str:
        """Return a table for notebooks. All text is escaped."""
        texts = [(name, f"{i.mean:.3f}", _limits(i, "{} to {}", "none"), f"{i.n}") for name, i in self.rows()]
        rows = ("".join(f"<td>{html.escape(text)}</td>" for text in row) for row in texts)
        cells = "".join(f"<tr>{row}</tr>" for row in rows)
        head = f"<tr><th></th><th>mean</th><th>{self.confidence:.0%} interval</th><th>prompts</th></tr>"
        return f"<table><caption>{html.escape(self._caption())}</caption>{head}{cells}</table>"

    def _caption(self) -> str:
        text = f"{self.prompts} held-out prompts, 1 greedy"
        if self.samples:
            text += f" and {self.samples} sampled answers each at temperature {self.temperature:g}"
        else:
            text += " answer each"
        text += f"; mean length {self.mean_length:.1f} tokens, {self.truncated:.1%} truncated"
        text += f"; {self.unscored} answers could not be scored and are left out" if self.unscored else ""
        return "; ".join((text, *self.tools))


def _record(saved: Mapping[str, Any]) -> Record:
    greedy, *samples = (
        Answer(**{**answer, "ids": tuple(answer["ids"]), "score": _score(answer["score"])})
        for answer in [saved["greedy"], *saved["samples"]]
    )
    return Record(index=_count(saved["index"]), prompt=saved["prompt"], greedy=greedy, samples=tuple(samples))


def _score(value: Any) -> float | None:
    if value is not None and (isinstance(value, bool) or not math.isfinite(value)):
        raise ValueError(f"a score of {value}")
    return value


def paired_difference(baseline: Evaluation, trained: Evaluation) -> dict[str, Interval]:
    """Return the differences of greedy accuracy and score, trained minus baseline, over prompts that both scored.

    The interval is narrower than a comparison of the two intervals, because the same prompts were answered twice.
    """
    before = {record.index: record.greedy for record in baseline.records}
    pairs = [
        (before[record.index], record.greedy)
        for record in trained.records
        if record.index in before and before[record.index].score is not None and record.greedy.score is not None
    ]
    alike = all((old.right is None) == (new.right is None) for old, new in pairs)
    right = [(_share(old, by_total=not alike), _share(new, by_total=not alike)) for old, new in pairs]
    scores = [(float(old.score or 0.0), float(new.score or 0.0)) for old, new in pairs]
    return {
        "accuracy": paired_interval(*_columns(right), trained.confidence, bounds=(0.0, 1.0)),
        "score": paired_interval(*_columns(scores), trained.confidence, bounds=bounds_of(s for p in scores for s in p)),
    }


def _share(answer: Answer, *, by_total: bool) -> float:
    """1 for a right answer. Beside answers of earlier versions, both sides are counted as those are, by their total."""
    return float((replace(answer, right=None) if by_total else answer).correct)


def paired_checks(baseline: Evaluation, trained: Evaluation) -> dict[str, Interval]:
    """Return the difference of each independent check, trained minus baseline, over prompts that it judged twice."""
    before = {record.index: record.greedy.check for record in baseline.records}
    pairs = [(before[record.index], record.greedy.check) for record in trained.records if record.index in before]
    return paired_by_label(pairs, trained.confidence)


def paired_by_label(
    pairs: Sequence[tuple[Mapping[str, float | None], Mapping[str, float | None]]], confidence: float
) -> dict[str, Interval]:
    """Return label -> difference over the pairs (before, after) in which the label has both scores."""
    values: dict[str, list[tuple[float, float]]] = {}
    for old, new in pairs:
        for label in old.keys() & new.keys():
            first, second = old[label], new[label]
            if first is not None and second is not None and math.isfinite(first) and math.isfinite(second):
                values.setdefault(label, []).append((first, second))
    return {
        label: paired_interval(*_columns(found), confidence, bounds=bounds_of(s for p in found for s in p))
        for label, found in sorted(values.items())
    }


def evaluation_json(
    baseline: Evaluation | None, trained: Evaluation | None = None, forgetting: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Return the content of `evaluation.json`: both evaluations, their paired difference, the checks with theirs, and
    forgetting."""
    found = {"baseline": baseline, "trained": trained}
    measured = {name: evaluation for name, evaluation in found.items() if evaluation is not None}
    content: dict[str, Any] = {name: evaluation.to_json() for name, evaluation in measured.items()}
    checked: Mapping[str, Interval] = {}
    if baseline is not None and trained is not None and baseline.records and trained.records:
        difference, checked = paired_difference(baseline, trained), paired_checks(baseline, trained)
        content["difference"] = {name: interval_to_json(interval) for name, interval in difference.items()}
    labels = dict.fromkeys(label for evaluation in measured.values() for label in evaluation.check)
    content["check"] = {
        label: {name: interval_to_json(evaluation.check.get(label)) for name, evaluation in measured.items()}
        | ({"difference": interval_to_json(checked[label])} if label in checked else {})
        for label in labels
    }
    if forgetting is not None:
        content["forgetting"] = {name: _finite(value) for name, value in forgetting.items()}
    return content


def bounds_of(values: Iterable[float]) -> tuple[float, float] | None:
    """Return (0, 1) if every value is 0 or 1, so that the mean is a share; else None."""
    return (0.0, 1.0) if all(value in (0.0, 1.0) for value in values) else None


def _columns(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [first for first, _ in pairs], [second for _, second in pairs]


def _show(interval: Interval) -> str:
    return f"{interval.mean:.3f}  {_limits(interval, '[{}, {}]', '[no interval]')}  n {interval.n}"


def _limits(interval: Interval, form: str, otherwise: str) -> str:
    """Fill the limits into the form; return the other text if there are none."""
    return form.format(f"{interval.low:.3f}", f"{interval.high:.3f}") if interval.finite else otherwise


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _number(value: float | None) -> float:
    if isinstance(value, bool | str) or (value is not None and not math.isfinite(value)):
        raise ValueError(f"{value!r} as a number")
    return math.nan if value is None else float(value)


def _count(value: int) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} as a count")
    return value


def interval_to_json(interval: Interval | None) -> dict[str, Any] | None:
    """Return the interval as it is stored: limits that are not finite are None."""
    if interval is None:
        return None
    return {
        "mean": _finite(interval.mean),
        "low": _finite(interval.low),
        "high": _finite(interval.high),
        "n": interval.n,
    }


def _interval_from_json(data: Mapping[str, Any]) -> Interval:
    low = -math.inf if data["low"] is None else _number(data["low"])
    high = math.inf if data["high"] is None else _number(data["high"])
    return Interval(_number(data["mean"]), low, high, _count(data["n"]))
