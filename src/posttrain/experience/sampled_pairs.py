"""One round of iterative preference optimisation: the start model answers, rewards rank the answers, pairs are trained.

    sampled/part-00000.jsonl   the answers of some prompts with their scores, one line per prompt
    pairs.jsonl                the pairs that were made of these answers

Each file is written as a whole or not at all. A run that is killed while it samples continues with the missing part.
Each line of a part has digests of what its answers were made of: the prompt, the model, the settings of sampling and
the rewards. Answers to other prompts are refused; a part is scored anew if only the rewards have changed, and sampled
anew if the model or the sampling has. A run that is resumed later trains on exactly the pairs on file (RULE 42).
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from posttrain.data.dropped import Dropped, Unusable, refuse_too_many, summary
from posttrain.data.prompt_key import prompt_bytes
from posttrain.data.read import Row
from posttrain.data.sampled_pairs import is_sampled_pair, read_sampled_pair, sampled_pair, write_sampled_pair
from posttrain.errors import DataError
from posttrain.experience.generate import Generator, draw, sampling_seed
from posttrain.experience.group import Group, groups_of, scores_of
from posttrain.files import write_durably
from posttrain.functional.baselines import reaches, rounding
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
    least = rounding(scores_1U, all_1U).item()
    two = ((c, r, gap) for c, row in zip(places, gaps_UU, strict=True) for r, gap in zip(places, row, strict=True))
    return {(c, r): gap for c, r, gap in two if gap > least}


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
        made_of: Mapping[str, str],
    ) -> None:
        assert config.sampled_pairs is not None
        self.config, self.settings, self.prompts, self.folder = config, config.sampled_pairs, prompts, folder
        self.generator, self.say, self.made_of = generator, say, made_of

    def pairs(self) -> tuple[list[Pair], list[str]]:
        """Return the pairs on file, or new ones, and a note about them. DataError if too few prompts have a pair."""
        file, about = self.folder / FILE, self.folder / FOLDER / "summary.json"
        if file.exists():
            self.say(
                f"the pairs are those of {FILE}: settings that sample, score and pair answers no longer change them"
            )
        else:
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
        sizes: set[int] = set()
        for answers in self.answers():
            chosen, why = choose(self.settings, answers, self.config.seed)
            rows += [_row(answers, c, r) for c, r in chosen]
            without.update([why] if why else [])
            sizes.add(len(answers.completions))
        each = " to ".join(str(size) for size in sorted({min(sizes), max(sizes)})) if sizes else "0"
        found = f"{len(self.prompts)} prompts x {each} answers: {len(rows)} pairs"
        if without:
            reasons = ", ".join(f"{count} {why}" for why, count in without.most_common())
            found += f"; {without.total()} prompts without a pair: {reasons}"
        if not rows or without.total() > self.settings.max_without * len(self.prompts):
            raise self._too_few(found, ADVICE[without.most_common(1)[0][0]])
        return rows, found

    def _too_few(self, found: str, advice: str) -> DataError:
        kept = self.folder / FOLDER
        fix = [
            advice,
            f"Change settings in {settings_of(self.folder)}, and resume: the answers in {kept} are kept for other "
            "settings of sampled_pairs, scored anew with other rewards, and sampled anew with other sampling.",
        ]
        if any("made_of" not in line for lines in self._on_file() for line in lines[:1]):
            fix.append(
                f"For other rewards or sampling, first remove {kept}: an earlier version wrote it without the settings "
                "that it used."
            )
        return DataError(
            given=f"sampled_pairs: {found}",
            allowed=f"some pairs, and at most max_without = {self.settings.max_without:.0%} of the prompts without one",
            fix=" ".join(fix),
        )

    def answers(self) -> Iterator[AnsweredPrompt]:
        """Yield the answers to all prompts in their order, part by part. A part on file is kept as far as it was made
        of the same. Raises DataError if it answers other prompts."""
        (self.folder / FOLDER).mkdir(exist_ok=True)
        for number, lines in enumerate(self._on_file()):
            self._require_same_prompts(self._prompts(number), lines)
        for number in range(self._parts):
            for prompt, line in zip(self._prompts(number), self._part(number), strict=True):
                completions = [Completion.from_json(given) for given in line["completions"]]
                scores, parts = line["scores"], line["parts"]
                yield AnsweredPrompt(prompt=prompt, completions=completions, scores=scores, parts=parts)

    @property
    def _parts(self) -> int:
        return -(-len(self.prompts) // PROMPTS_PER_PART)

    def _prompts(self, number: int) -> Sequence[Prompt]:
        return self.prompts[number * PROMPTS_PER_PART : (number + 1) * PROMPTS_PER_PART]

    def _file(self, number: int) -> Path:
        return self.folder / FOLDER / f"part-{number:05d}.jsonl"

    def _read(self, number: int) -> list[dict[str, Any]]:
        """Return the lines of a part; none if it is not on file."""
        file = self._file(number)
        return [json.loads(line) for line in file.read_bytes().splitlines()] if file.exists() else []

    def _on_file(self) -> Iterator[list[dict[str, Any]]]:
        return map(self._read, range(self._parts))

    def _require_same_prompts(self, prompts: Sequence[Prompt], lines: Sequence[Mapping[str, Any]]) -> None:
        """Raise DataError if these lines of a part are answers to other prompts."""
        places = [(prompt.index, _digest(prompt)) for prompt in prompts]
        known = [(line["prompt_index"], line.get("made_of", {}).get("prompt")) for line in lines]
        same = [a == b and digest in (None, now) for (a, digest), (b, now) in zip(known, places, strict=False)]
        if not lines or (all(same) and len(known) == len(places)):
            return
        first = same.index(False) if False in same else len(same)
        row = (places if first < len(places) else known)[first][0]
        raise DataError(
            given=f"the answers in {self.folder / FOLDER} are to other prompts than the data has, from row {row} on",
            allowed="the data, and the settings of data, with which the run was started",
            fix=f"Restore them. Or remove {self.folder / FOLDER} and resume, to answer the present prompts.",
        )

    def _part(self, number: int) -> list[dict[str, Any]]:
        """Return the lines of a part, after making what is missing or was made of something else."""
        prompts, lines = self._prompts(number), self._read(number)
        made_of = lines[0].get("made_of") if lines else None
        changed = [] if made_of is None else [what for what, now in self.made_of.items() if made_of.get(what) != now]
        if lines and not changed:
            return lines
        given = [line["completions"] for line in lines] if changed == ["rewards"] else None
        write_durably(self._file(number), _lines(self.sample(prompts, number, given)))
        done = f"{number * PROMPTS_PER_PART + len(prompts)} of {len(self.prompts)} prompts"
        why = f" anew: {' and '.join(changed)} changed since" if changed else ""
        self.say(f"answered {done}{why}" if given is None else f"scored the answers to {done}{why}")
        return self._read(number)

    def sample(
        self, prompts: Sequence[Prompt], number: int, given: Sequence[Sequence[Any]] | None = None
    ) -> list[dict[str, Any]]:
        """Return one line per prompt: the answers, or those `given`, and their scores. RewardError past the limit."""
        groups = self._sampled(prompts) if given is None else self._scored(prompts, given)
        scores = scores_of(groups)
        assert scores is not None, "pairs are made by rewards"
        enforce_limit(scores, self.config.guards.max_unscored)
        judged = self.folder / FOLDER / f"judgements-{number:05d}.jsonl"
        if scores.judgements:
            write_durably(judged, _lines([judgement.to_json() for judgement in scores.judgements]))
        else:
            judged.unlink(missing_ok=True)  # of the rewards before
        return [_line(group, self.made_of) for group in groups]

    def _sampled(self, prompts: Sequence[Prompt]) -> Sequence[Group]:
        sampling, seed = self.config.sampling, sampling_seed(self.config.seed, 0, 0)  # steps count from 1
        seeds = [seed] * len(prompts)
        return self.generator.generate(prompts, sampling, group_size=sampling.group_size, seeds=seeds).groups

    def _scored(self, prompts: Sequence[Prompt], given: Sequence[Sequence[Any]]) -> Sequence[Group]:
        """Return groups of answers on file, with new scores."""
        completions = [[Completion.from_json(one) for one in group] for group in given]
        stream = ((place, n, one) for place, group in enumerate(completions) for n, one in enumerate(group))
        drawn = draw(stream, prompts, self.generator.rewards, group_size=len(completions[0]))
        return groups_of(prompts, drawn.completions, drawn.scores)


ADVICE = {
    "tie": "Use rewards that distinguish more answers, a higher sampling.temperature or a larger sampling.group_size.",
    "gap below min_gap": "Lower sampled_pairs.min_gap.",
    "none correct": "Raise sampling.group_size, lower sampled_pairs.correct_at, or start a new run on easier prompts.",
    "all correct": "Raise sampled_pairs.correct_at, or start a new run on harder prompts.",
    "fewer than two scored answers": "Look at the rewards: they give most answers no score.",
}
"""Advice by the most frequent reason for prompts without a pair."""


def _line(group: Group, made_of: Mapping[str, str]) -> dict[str, Any]:
    assert group.scores is not None
    scores, scored = group.scores.rewards_PG[0], group.scores.scored_PG[0]
    return {
        "prompt_index": group.prompt.index,
        "completions": [asdict(completion) for completion in group.completions],
        "scores": [score if known else None for score, known in zip(scores, scored, strict=True)],
        "parts": {label: part[0] for label, part in group.scores.parts.items()},
        "made_of": {"prompt": _digest(group.prompt), **made_of},
    }


def _digest(prompt: Prompt) -> str:
    return hashlib.sha256(prompt_bytes(prompt)).hexdigest()[:32]


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
