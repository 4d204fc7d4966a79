"""One round of iterative preference optimisation: the start model answers, rewards rank the answers, pairs are trained.

    sampled/part-00000.jsonl   the answers of some prompts with their scores, one line per prompt
    pairs.jsonl                the pairs that were made of these answers

Each file is written as a whole or not at all. A run that is killed while it samples continues with the missing part.
A run that is resumed later trains on exactly the pairs on file (RULE 42).
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from posttrain.data.dropped import Dropped, Unusable, refuse_too_many, summary
from posttrain.data.read import Row
from posttrain.data.sampled_pairs import is_sampled_pair, read_sampled_pair, sampled_pair, write_sampled_pair
from posttrain.errors import DataError
from posttrain.experience.generate import Generator, sampling_seed
from posttrain.experience.group import Group, scores_of
from posttrain.files import write_durably
from posttrain.functional.baselines import EQUAL_REWARDS, group_mean, reaches
from posttrain.functional.pairing import gaps
from posttrain.models.load import LoadedModel
from posttrain.rewards.scores import enforce_limit
from posttrain.store.folders import settings_of
from posttrain.types import Completion, Pair, Prompt

if TYPE_CHECKING:
    from posttrain.config import RunConfig, SampledPairsConfig

PROMPTS_PER_PART = 64
"""Prompts in one part. A part is answered and scored as a whole, and kept if the run is killed after that."""
FILE, FOLDER = "pairs.jsonl", "sampled"

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class AnsweredPrompt:
    """One prompt, the start model's answers to it, and their scores."""

    prompt: Prompt
    completions: Sequence[Completion]
    scores: Sequence[float | None]
    """Scores of the completions; None for a completion without a reward."""
    parts: Mapping[str, Sequence[float | None]]
    """Values of each single reward, by its name."""


def earlier_pairs(
    config: RunConfig, rows: Sequence[Row], loaded: LoadedModel, heldout: Sequence[Prompt]
) -> tuple[list[Pair], list[str]]:
    """Return the pairs of earlier rounds in the training rows, without pairs of held-out prompts, and notes on them."""
    known = {prompt.ids for prompt in heldout}
    found: list[Pair] = []
    dropped: list[Dropped] = []
    given = [row for row in rows if is_sampled_pair(row)]
    for row in given:
        try:
            pair = read_sampled_pair(row, loaded.tokenizer, len(found))
        except Unusable as reason:
            dropped.append(Dropped(row.origin, str(reason)))
            continue
        if tuple(row.values["prompt_ids"]) in known:
            dropped.append(Dropped(row.origin, "its prompt is held out"))
        else:
            found.append(pair)
    if not given:
        return [], []
    refuse_too_many(dropped, len(given), config.data.max_dropped, "pairs of earlier rounds")
    return found, [f"{len(found)} pairs of earlier rounds. {summary(dropped, len(given))}".rstrip(". ")]


def numbered(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs, numbered by their position in the data of the run."""
    return [
        replace(pair, index=n, chosen=replace(pair.chosen, index=n), rejected=replace(pair.rejected, index=n))
        for n, pair in enumerate(pairs)
    ]


# --- which two answers ------------------------------------------------------------------------------------------------


def choose(settings: SampledPairsConfig, answers: AnsweredPrompt, seed: int) -> tuple[list[tuple[int, int]], str]:
    """Return the (chosen, rejected) answer indices of one prompt's pairs; if there is none, the reason."""
    ids, scores = [c.ids for c in answers.completions], answers.scores
    usable = [(place, score) for place, score in enumerate(scores) if score is not None and ids[place]]
    if len(usable) < 2:
        return [], "fewer than two scored answers"
    ahead = _ahead(usable, ids)
    if not ahead:
        return [], "tie"
    if (bound := settings.correct_at) is not None:
        right = {place for place, score in usable if _reaches(score, bound)}
        ahead = {(c, r): gap for (c, r), gap in ahead.items() if c in right and r not in right}
        if not ahead:
            return [], "all correct" if right else "none correct"
    far = [pair for pair, gap in ahead.items() if _reaches(gap, settings.min_gap)]
    if not far:
        return [], "gap below min_gap"
    if settings.select == "random":
        random.Random(f"{seed} {answers.prompt.index}").shuffle(far)
    else:
        far.sort(key=lambda pair: (-ahead[pair], pair))
    return _different(far, ids, settings), ""


def _ahead(usable: Sequence[tuple[int, float]], ids: Sequence[tuple[int, ...]]) -> dict[tuple[int, int], float]:
    """Return the score gap of each two answers, better one first, if scores and texts differ (RULE 42).

    Scores that differ only by rounding are equal (RULE 11)."""
    places = [place for place, _ in usable]
    scores_1U = torch.tensor([[score for _, score in usable]], dtype=torch.float64)
    same_1UU = torch.tensor([[[ids[a] == ids[b] for b in places] for a in places]])
    all_1U = torch.ones_like(scores_1U, dtype=torch.bool)
    gaps_UU = gaps(scores_1U, all_1U, same_1UU)[0].tolist()
    rounding = EQUAL_REWARDS * max(1.0, abs(group_mean(scores_1U, all_1U).item()))
    two = ((c, r, gap) for c, row in zip(places, gaps_UU, strict=True) for r, gap in zip(places, row, strict=True))
    return {(c, r): gap for c, r, gap in two if gap > rounding}


def _reaches(value: float, mark: float) -> bool:
    return bool(reaches(torch.tensor(value, dtype=torch.float64), mark))


def _different(
    pairs: Sequence[tuple[int, int]], ids: Sequence[tuple[int, ...]], settings: SampledPairsConfig
) -> list[tuple[int, int]]:
    """Return the first pairs that do not repeat one another: no two with the same texts. best_worst pairs best with
    worst, second best with second worst, and so on."""
    kept: list[tuple[int, int]] = []
    seen: set[Any] = set()
    for c, r in pairs:
        own = {(ids[c], ids[r])} | ({c, r} if settings.select == "best_worst" else set())
        if len(kept) < settings.max_per_prompt and not own & seen:
            kept.append((c, r))
            seen |= own
    return kept


# --- sampling, and the files ------------------------------------------------------------------------------------------


class Round:
    """The start model's answers to the training prompts, and the pairs made of them."""

    def __init__(
        self,
        config: RunConfig,
        prompts: Sequence[Prompt],
        generator: Generator,
        folder: Path,
        say: Say,
    ) -> None:
        assert config.sampled_pairs is not None
        self.config, self.settings, self.prompts, self.folder = config, config.sampled_pairs, prompts, folder
        self.generator, self.say = generator, say

    def pairs(self) -> tuple[list[Pair], list[str]]:
        """Return the pairs on file, or new ones, and a note about them. DataError if too few prompts have a pair."""
        file, about = self.folder / FILE, self.folder / FOLDER / "summary.json"
        if not file.exists():
            rows, found = self.make()
            write_durably(about, json.dumps(found).encode())
            write_durably(file, _lines(rows))
        rows = [json.loads(line) for line in file.read_bytes().splitlines()]
        pairs = [sampled_pair(row, number) for number, row in enumerate(rows)]
        return pairs, [json.loads(about.read_bytes())]

    def make(self) -> tuple[list[dict[str, Any]], str]:
        """Return the rows of the file, and a note: how many prompts gave no pair, and why."""
        rows: list[dict[str, Any]] = []
        without: Counter[str] = Counter()
        for answers in self.answers():
            chosen, why = choose(self.settings, answers, self.config.seed)
            rows += [_row(answers, c, r) for c, r in chosen]
            without.update([why] if why else [])
        found = f"{len(self.prompts)} prompts x {self.config.sampling.group_size} answers: {len(rows)} pairs"
        if without:
            reasons = ", ".join(f"{count} {why}" for why, count in without.most_common())
            found += f"; {without.total()} prompts without a pair: {reasons}"
        if not rows or without.total() > self.settings.max_without * len(self.prompts):
            raise DataError(
                given=f"sampled_pairs: {found}",
                allowed=f"some pairs, and at most max_without = {self.settings.max_without:.0%} of the prompts "
                "without one",
                fix=f"{ADVICE[without.most_common(1)[0][0]]} The answers are kept in {self.folder / FOLDER}: change "
                f"settings of sampled_pairs in {settings_of(self.folder)}, and resume.",
            )
        return rows, found

    def answers(self) -> Iterator[AnsweredPrompt]:
        """Yield the answers to all prompts in their order, part by part. A part on file is not sampled again."""
        (self.folder / FOLDER).mkdir(exist_ok=True)
        for number, begin in enumerate(range(0, len(self.prompts), PROMPTS_PER_PART)):
            prompts = self.prompts[begin : begin + PROMPTS_PER_PART]
            file = self.folder / FOLDER / f"part-{number:05d}.jsonl"
            if not file.exists():
                write_durably(file, _lines(self.sample(prompts, number)))
                self.say(f"answered {begin + len(prompts)} of {len(self.prompts)} prompts")
            lines = file.read_bytes().splitlines()
            for prompt, line in zip(prompts, lines, strict=True):
                yield _answers(prompt, json.loads(line))

    def sample(self, prompts: Sequence[Prompt], number: int) -> list[dict[str, Any]]:
        """Return one line per prompt: the answers and their scores. Raises RewardError past the limit."""
        sampling, seed = self.config.sampling, sampling_seed(self.config.seed, 0, 0)  # steps count from 1
        seeds = [seed] * len(prompts)
        groups = self.generator.generate(prompts, sampling, group_size=sampling.group_size, seeds=seeds).groups
        scores = scores_of(groups)
        assert scores is not None, "pairs are made by rewards"
        enforce_limit(scores, self.config.guards.max_unscored)
        if scores.judgements:
            judgements = [judgement.to_json() for judgement in scores.judgements]
            write_durably(self.folder / FOLDER / f"judgements-{number:05d}.jsonl", _lines(judgements))
        return [_line(group) for group in groups]


ADVICE = {
    "tie": "Use rewards that distinguish more answers, a higher sampling.temperature or a larger sampling.group_size.",
    "gap below min_gap": "Lower sampled_pairs.min_gap.",
    "none correct": "Raise sampling.group_size, use easier prompts, or lower sampled_pairs.correct_at.",
    "all correct": "Use harder prompts, or raise sampled_pairs.correct_at.",
    "fewer than two scored answers": "Look at the rewards: they give most answers no score.",
}
"""Advice by the most frequent reason for prompts without a pair."""


def _line(group: Group) -> dict[str, Any]:
    assert group.scores is not None
    scores, scored = group.scores.rewards_PG[0], group.scores.scored_PG[0]
    return {
        "prompt_index": group.prompt.index,
        "completions": [asdict(completion) for completion in group.completions],
        "scores": [score if known else None for score, known in zip(scores, scored, strict=True)],
        "parts": {label: part[0] for label, part in group.scores.parts.items()},
    }


def _answers(prompt: Prompt, line: Mapping[str, Any]) -> AnsweredPrompt:
    if line["prompt_index"] != prompt.index:
        raise DataError(
            given=f"the saved answers are for row {line['prompt_index']} of the data, but row {prompt.index} is "
            "there now",
            allowed="the data with which the run was started",
            fix="Restore the data, or start a new run.",
        )
    completions = [Completion.from_json(given) for given in line["completions"]]
    return AnsweredPrompt(prompt=prompt, completions=completions, scores=line["scores"], parts=line["parts"])


def _row(answers: AnsweredPrompt, chosen: int, rejected: int) -> dict[str, Any]:
    high, low = answers.scores[chosen], answers.scores[rejected]
    assert high is not None
    assert low is not None
    return {
        **write_sampled_pair(answers.prompt, answers.completions[chosen], answers.completions[rejected]),
        "margin": high - low,
        "chosen_score": high,
        "rejected_score": low,
        "parts": {label: [part[chosen], part[rejected]] for label, part in answers.parts.items()},
        "prompt_index": answers.prompt.index,
        "answers": [chosen, rejected],
    }


def _lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
