"""How a model writes, before and after training: greedy answers to a few prompts, and the loss on plain English.

A run that learns from given answers can rank them better and lose the ability to write: only its own answers show
that. The measures of each answer to the same prompts, before and after:

    repetition   1 - distinct sequences of four tokens / all sequences
    same         is it word for word also the answer to another prompt?
    ended        did it end before the length limit?
    length       in tokens

and for the text in plain_english.txt, a few hundred tokens: the negative log-likelihood per token. A run that samples
held-out answers anyway uses those and draws no others. The cost is a batch of short answers and one forward pass,
twice. If a run that learns from given answers has an independent check, the check scores these answers.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from posttrain.evaluate.evaluation import Evaluation, interval_to_json, paired_by_label
from posttrain.evaluate.forgetting import window_losses
from posttrain.evaluate.heldout import interval_of
from posttrain.evaluate.measure import Measure
from posttrain.evaluate.row_scores import RowScores, of_baseline
from posttrain.files import Damaged, read_sealed_json, write_sealed
from posttrain.functional.intervals import Interval, mean_interval, paired_interval, ratio_interval
from posttrain.functional.texts import distinct_ngrams
from posttrain.rewards.scores import enforce_limit
from posttrain.types import Example, LabelledExample, Pair, Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from posttrain.config import RunConfig
    from posttrain.engines.sampler import Sampler
    from posttrain.models.load import LoadedModel
    from posttrain.rewards import RewardSet

Records = Sequence[Mapping[str, Any]]
"""Answers, each as {index, prompt, text, ids, ended}."""
MOST_TOKENS = 64
"""Maximum tokens of an answer that is drawn for this measure."""
MOST_PROMPT_TOKENS = 1024
"""Maximum tokens of a prompt. Longer prompts are skipped: reading them would cost more than answering them."""
OPENING = 16
"""First tokens of a text without a prompt that serve as its prompt."""
LOOKED_AT = 16
"""Maximum number of rows to read for each wanted prompt, because a prompt that is in several rows is used once."""
UNKNOWN = 0.1
"""Share of unknown tokens above which a tokenizer cannot write English."""
TEXT = Path(__file__).with_name("plain_english.txt")


class Given(NamedTuple):
    """An answer of the data, with its ids cut to the length of a drawn answer."""

    text: str
    ids: Sequence[int]


class Asked(NamedTuple):
    """The prompts that the model answers for this measure."""

    prompts: Sequence[Prompt] = ()
    given: Sequence[Given] = ()
    """The answers in the data to some of the prompts: repetition in them is no fault of the model."""
    of: str = "held-out prompts"

    @staticmethod
    def of_rows(config: RunConfig, loaded: LoadedModel, heldout: Sequence[Any], train: Sequence[Any]) -> Asked:
        """Return the first prompts of the held-out rows, or of the training rows if none are held out."""
        rows, of = (heldout, "held-out prompts") if len(heldout) else (train, "training prompts")
        count, tokenizer = config.evaluation.writing, loaded.tokenizer
        longest = min(MOST_PROMPT_TOKENS, (loaded.context_length or 2 * MOST_PROMPT_TOKENS) - longest_answer(loaded))
        found: dict[tuple[int, ...], Prompt] = {}
        given: list[Given] = []
        for number in range(min(count * LOOKED_AT, len(rows))):
            prompt, answer = question_of(rows[number], tokenizer)
            if 0 < len(prompt.ids) <= longest and prompt.ids not in found and len(found) < count:
                found[prompt.ids] = prompt
                given += [] if answer is None else [answer]
        return Asked(list(found.values()), given, of)


def longest_answer(model: LoadedModel | Sampler) -> int:
    """Return the maximum tokens of an answer, which leave room for a prompt in the context."""
    return min(MOST_TOKENS, (model.context_length or 2 * MOST_TOKENS) // 2)


def question_of(
    row: Prompt | Pair | LabelledExample | Example, tokenizer: PreTrainedTokenizerBase
) -> tuple[Prompt, Given | None]:
    """Return the prompt of a row, and its answer if the row has an answer that should be learned."""
    if isinstance(row, Prompt):
        gold = row.columns.get("answer")
        if gold is None:
            return row, None
        ids = tokenizer(str(gold), add_special_tokens=False, verbose=False).input_ids
        return row, Given(str(gold), list(ids)[:MOST_TOKENS])
    example = row.chosen if isinstance(row, Pair) else row.example if isinstance(row, LabelledExample) else row
    begin = example.completion_mask.index(True) if True in example.completion_mask else len(example.input_ids)
    if begin <= 1:  # a text without a prompt: all of it is learned
        begin = min(OPENING, len(example.input_ids) // 2)
    prompt, answer = example.input_ids[:begin], example.input_ids[begin:]
    text = tokenizer.decode(list(prompt))
    wanted = not isinstance(row, LabelledExample) or row.label
    said = Given(str(tokenizer.decode(list(answer), skip_special_tokens=True)), list(answer)[:MOST_TOKENS])
    return Prompt(index=row.index, ids=tuple(prompt), text=str(text)), said if wanted else None


@dataclass(frozen=True, kw_only=True)
class Written:
    """Answers of one state of the weights, each as {index, prompt, text, ids, ended}, and its scores of the text."""

    answers: Sequence[Mapping[str, Any]]
    text: RowScores | None
    """Scores of each window of the text; None if the tokenizer cannot write it."""
    text_bytes: int

    def write(self, folder: Path, name: str) -> None:
        text = None if self.text is None else self.text._asdict()
        content = {"answers": list(self.answers), "text": text, "text_bytes": self.text_bytes}
        write_sealed(folder / f"{name}-writing.json", json.dumps(content, ensure_ascii=False))

    @staticmethod
    def read(folder: Path, name: str = "baseline") -> Written:
        """Read the answers and scores of `write`. Raises `Damaged` if the file's checksum or content is wrong."""
        found = read_sealed_json(folder, f"{name}-writing.json")
        if not isinstance(found, dict) or found.keys() != {"answers", "text", "text_bytes"}:
            raise Damaged(f"{name}-writing.json holds no answers")
        text = None if found["text"] is None else RowScores(**found["text"])
        return Written(answers=found["answers"], text=text, text_bytes=found["text_bytes"])


class WithWriting:
    """A measure extended by how the model writes, before and after training."""

    def __init__(
        self,
        measure: Measure,
        asked: Asked,
        answer: Callable[[Sequence[Prompt]], Sequence[Mapping[str, Any]]],
        score_text: Callable[[], tuple[RowScores | None, int]],
        confidence: float,
    ) -> None:
        self.measure, self.asked, self.answer = measure, asked, answer
        self.score_text, self.confidence = score_text, confidence

    def __call__(self, folder: Path, name: str) -> dict[str, Any]:
        measured = self.measure(folder, name)
        if name.startswith("step"):
            return measured
        drawn = "greedy" in measured.get(name, {})
        answers, lost = self._answers(folder, name, drawn)
        if answers is None:
            return {**measured, **lost}
        text, text_bytes = self.score_text()
        now = Written(answers=answers, text=text, text_bytes=text_bytes)
        now.write(folder, name)
        before = of_baseline(lambda: Written.read(folder))[0] if name == "trained" else None
        sides = {"baseline": before, "trained": now} if name == "trained" else {"baseline": now}
        return {
            **measured,
            **({} if drawn else checks_of(sides, self.confidence)),
            "writing": {
                "prompts": len(answers),
                "of": "held-out prompts" if drawn else self.asked.of,
                "given": given_measures(self.asked.given),
                **{side: writing_measures(one, self.confidence) for side, one in sides.items() if one is not None},
                **({} if before is None else {"difference": writing_changes(before, now, self.confidence)}),
            },
        }

    def _answers(self, folder: Path, name: str, drawn: bool) -> tuple[Records | None, dict[str, str]]:
        """Return (the answers, {}), or (None, {"lost": reason}) if the file of those already drawn is damaged."""
        if drawn:
            return of_baseline(lambda: answers_on_file(folder, name))
        return self.answer(self.asked.prompts), {}


# --- what is counted -------------------------------------------------------------------------------------------------


def repetition(ids: Sequence[int]) -> float:
    return 1 - distinct_ngrams(ids, 4)


def same(texts: Sequence[str]) -> list[float]:
    """Return 1 for each text that occurs more than once, else 0.

    >>> same(["yes", "no", " yes"]), same(["a", "b"])
    ([1.0, 0.0, 1.0], [0.0, 0.0])
    """
    plain = [text.strip() for text in texts]
    times = Counter(plain)
    return [float(times[text] > 1) for text in plain]


def given_measures(answers: Sequence[Given]) -> dict[str, float]:
    """Return the measures of the answers in the data: a model that answers like them does not write badly."""
    if not answers:
        return {}
    return {
        "same": statistics.fmean(same([answer.text for answer in answers])),
        "repetition": statistics.fmean(repetition(answer.ids) for answer in answers),
    }


def writing_measures(written: Written, confidence: float) -> dict[str, Any]:
    """Return the measures for one state of the weights: means with intervals, over prompts and over text windows."""
    columns, found = columns_of(written.answers), dict[str, Any]()
    if written.answers:
        for name, values in columns.items():
            bounds = None if name == "length" else (0.0, 1.0)
            found[name] = interval_to_json(mean_interval(values, confidence, bounds=bounds))
    if written.text is not None:
        losses = [-total for total in written.text.logprobs]
        found["text_loss"] = interval_to_json(ratio_interval(losses, written.text.tokens, confidence))
        found["text_bits_per_byte"] = sum(losses) / written.text_bytes * 1.4426950408889634
    return found


def writing_changes(before: Written, now: Written, confidence: float) -> dict[str, Any]:
    """Return the paired changes, after minus before, over prompts and over windows of the text."""
    found: dict[str, Interval] = {}
    asked = [(answer["index"], answer["prompt"]) for answer in now.answers]
    if asked and asked == [(answer["index"], answer["prompt"]) for answer in before.answers]:
        old, new = columns_of(before.answers), columns_of(now.answers)
        for name in old:
            bounds = (0.0, 1.0) if name in ("same", "ended") else None
            found[name] = paired_interval(old[name], new[name], confidence, bounds=bounds)
    if before.text is not None and now.text is not None and before.text.tokens == now.text.tokens:
        worse = [-moved for moved in now.text - before.text]
        found["text_loss"] = ratio_interval(worse, now.text.tokens, confidence)
    return {name: interval_to_json(interval) for name, interval in found.items()}


def checks_of(sides: Mapping[str, Written | None], confidence: float) -> dict[str, Any]:
    """Return the entry `check` of evaluation.json: label -> side -> interval, and their paired difference; empty if
    there is no check."""
    measured = {side: written.answers for side, written in sides.items() if written is not None}
    labels = dict.fromkeys(label for answers in measured.values() for answer in answers for label in said_of(answer))

    def interval(answers: Sequence[Mapping[str, Any]], label: str) -> dict[str, Any] | None:
        values = [said_of(answer).get(label) for answer in answers]
        return interval_to_json(interval_of([[] if value is None else [value] for value in values], confidence))

    found = {label: {side: interval(answers, label) for side, answers in measured.items()} for label in labels}
    if (before := measured.get("baseline")) is not None and (after := measured.get("trained")) is not None:
        old = {answer["index"]: said_of(answer) for answer in before}
        pairs = [(old[answer["index"]], said_of(answer)) for answer in after if answer["index"] in old]
        for label, change in paired_by_label(pairs, confidence).items():
            found[label]["difference"] = interval_to_json(change)
    return {"check": found} if found else {}


def said_of(answer: Mapping[str, Any]) -> Mapping[str, float | None]:
    """Return the scores of the independent check for an answer, by label."""
    return answer.get("check", {})


def columns_of(answers: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    return {
        "repetition": [repetition(answer["ids"]) for answer in answers],
        "same": same([answer["text"] for answer in answers]),
        "ended": [float(answer["ended"]) for answer in answers],
        "length": [float(len(answer["ids"])) for answer in answers],
    }


# --- answers and scores ----------------------------------------------------------------------------------------------


def answers_on_file(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the greedy answers that another measure has drawn and stored. Raises `Damaged`."""
    return [
        answer_record(record.index, record.prompt, record.greedy.text, record.greedy.ids, record.greedy.truncated)
        for record in Evaluation.each_record(folder / f"{name}.jsonl")
    ]


def draw_answers(
    sampler: Sampler, config: RunConfig, prompts: Sequence[Prompt], *, check: RewardSet | None = None
) -> list[dict[str, Any]]:
    """Return greedy answers of the current weights, cut at 64 tokens, with the scores of `check`."""
    whole = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
    greedy = config.sampling.model_copy(update={**whole, "max_completion_length": longest_answer(sampler)})
    answers = sampler.generate(prompts, greedy, group_size=1, seed=config.seed) if prompts else []
    records = [
        answer_record(prompt.index, prompt.text, answer.text, answer.ids, answer.truncated)
        for prompt, (answer,) in zip(prompts, answers, strict=True)
    ]
    if check is None or not records:
        return records
    scores = check.score(prompts, answers)
    enforce_limit(scores, config.guards.max_unscored)
    return [
        {**record, "check": {label: _said(values[place][0]) for label, values in scores.parts.items()}}
        for place, record in enumerate(records)
    ]


def _said(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


def answer_record(index: int, prompt: str, text: str, ids: Iterable[int], truncated: bool) -> dict[str, Any]:
    return {"index": index, "prompt": prompt, "text": text, "ids": list(ids), "ended": not truncated}


def score_plain_english(config: RunConfig, loaded: LoadedModel) -> tuple[RowScores | None, int]:
    """Return the log-probability of the text under the current weights, and its number of bytes."""
    text = TEXT.read_text(encoding="utf-8")
    ids = list(loaded.tokenizer(text, add_special_tokens=False, verbose=False).input_ids)
    unknown = ids.count(loaded.tokenizer.unk_token_id) if loaded.tokenizer.unk_token_id is not None else 0
    if not ids or unknown > UNKNOWN * len(ids):
        return None, 0
    with loaded.compute.scope():
        scores = window_losses(
            loaded.model,
            loaded.tokenizer,
            text.split("\n\n"),
            window=min(512, loaded.context_length or 512),
            compute_dtype=loaded.compute_dtype,
            chunk_tokens=config.train.logprob_chunk_tokens,
        )
    return (scores, len(text.encode())) if scores.tokens else (None, 0)
