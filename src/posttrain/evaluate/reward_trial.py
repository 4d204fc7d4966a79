"""Tries rewards before a run: do they tell right from wrong, and can the model learn from them?

The trial scores completions with the gold answer, empty completions, and completions with the answer of another row, as
a run would. Then it scores answers of the model. An algorithm that compares the answers to one prompt learns only from
groups whose rewards differ: their expected share says whether a run can succeed at all.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.config import in_folder
from posttrain.data.prompts import Renderer, plain_prompts
from posttrain.data.read import Row
from posttrain.data.split import Split, read_split
from posttrain.data.unknown import UnknownText, unknown_text
from posttrain.engines import make_sampler
from posttrain.episodes.acting import Acting
from posttrain.evaluate.environment_trial import try_environment
from posttrain.evaluate.group_signal import (
    ModelAnswers,
    about_answers,
    about_right,
    about_unscored,
    finding,
    sample_answers,
)
from posttrain.experience.rendering import prompt_sets
from posttrain.models.load import load_model
from posttrain.models.named import resolve_model_path
from posttrain.rewards import RewardSet, Scores, build_rewards
from posttrain.rewards.audit.finding import Finding, quote
from posttrain.rewards.audit.games import solution
from posttrain.rewards.audit.programs import PROGRAM_FORM, PROGRAMS, reference_of
from posttrain.rewards.audit.renderings import FORMS, fill, last_line
from posttrain.rewards.audit.subject import completion
from posttrain.rewards.missing import columns_known
from posttrain.rewards.verifiers import BUILTINS
from posttrain.types import Prompt
from posttrain.verify.mathematics.places import final_of
from posttrain.verify.programs.suite import holds_tests

if TYPE_CHECKING:
    from posttrain.config import RunConfig, SamplingConfig
    from posttrain.engines.sampler import Answers as Answering

GOLD_ACCEPTED, WRONG_ACCEPTED = 0.98, 0.02
"""Minimum share of right answers, and maximum share of wrong answers, that the rewards accept."""
MOST_ROWS = 256
"""Maximum number of rows whose gold answers are tried."""
SHOWN = 3
"""Number of examples of each kind."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The result of trying a set of rewards."""

    rewards: tuple[str, ...]
    rows: int
    of_rows: int
    """Number of rows from which `rows` were drawn at random."""
    reads: str | None
    """The answer form in which most gold answers are accepted; None if no row has a gold answer."""
    findings: tuple[Finding, ...]
    model: ModelAnswers | None

    @property
    def ok(self) -> bool:
        """True if nothing failed. Warnings do not count."""
        return all(f.status != "fail" for f in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self), "model": None if self.model is None else self.model.to_json()}

    def render(self) -> str:
        """Return plain text for a terminal."""
        drawn = f", drawn at random from {self.of_rows:,}" if self.of_rows > self.rows else ""
        lines = [f"rewards  {', '.join(self.rewards)}", f"rows     {self.rows}{drawn}"]
        if self.reads:
            lines.append(f"reads    {PROGRAMS if self.reads == PROGRAM_FORM else last_line(self.reads)}")
        width = max(len(f.check) for f in self.findings)
        lines += ["", *(f"{f.status.upper():<8}{f.check:<{width}}  {f.text}" for f in self.findings)]
        for one in self.findings:
            if one.status in ("warn", "fail"):
                lines += ["", f"{one.status.upper()} {one.check}   {one.limit}"]
                lines += [f"    {example}" for example in one.examples]
        if self.model is not None:
            lines += ["", *self.model.lines()]
        return "\n".join([*lines, "", self._last_line()])

    def _last_line(self) -> str:
        if not self.ok:
            return "Do not start a run yet."
        if all(f.status == "skipped" for f in self.findings):
            return "Nothing was tested: there are no right answers and no answers of a model. Add --model."
        if any(f.status == "warn" for f in self.findings):
            return "A run can learn, but slowly: see the warnings."
        if self.model is None:
            return "The rewards tell right answers from wrong ones. Add --model to see what a model earns."
        return "Nothing speaks against a run."


def try_rewards(
    rewards: RewardSet,
    prompts: Sequence[Prompt],
    *,
    sampling: SamplingConfig,
    sampler: Answering | None = None,
    sampled_prompts: int = 32,
    samples: int | None = None,
    max_truncated: float = 0.5,
    max_unscored: float = 0.2,
    seed: int = 0,
    of_rows: int | None = None,
    before: Sequence[Finding] = (),
) -> Trial:
    """Try the rewards on completions whose right score is known, and, with a sampler, on answers of the model.

    `sampling.group_size` is the number of completions that the run compares. `samples` answers (default: the group
    size) are drawn for each of the first `sampled_prompts` prompts. A share of `max_truncated` of them may be cut off,
    and a share of `max_unscored` of all completions may have no score. `of_rows`: number of rows from which the prompts
    were drawn. `before`: earlier findings. Raises what the rewards raise if they break their contract.
    """
    given = (
        [(prompt, gold) for prompt in prompts if (gold := _gold(prompt))] if _judge_answers(rewards, prompts) else []
    )
    reads, findings, seen = _known(rewards, given, max_unscored)
    answers = None
    if sampler is not None:
        answers, scores = sample_answers(rewards, prompts[:sampled_prompts], sampler, sampling, samples, seed, seen)
        findings += [
            about_unscored("unscored samples", [scores], max_unscored),
            *about_answers(answers, sampling, max_truncated),
            *about_right(rewards, prompts, scores),
        ]
    return Trial(
        rewards=rewards.labels,
        rows=len(prompts),
        of_rows=of_rows or len(prompts),
        reads=reads,
        findings=(*before, *findings),
        model=answers,
    )


# --- completions whose right score is known --------------------------------------------------------------------------


def _judge_answers(rewards: RewardSet, prompts: Sequence[Prompt]) -> bool:
    """Can any reward tell a right answer from a wrong one? A model or judge can, and a reward that reads a column."""
    available = columns_known(prompts)
    return any(one.model or one.judge or one.columns(available) for one in rewards.components)


def _gold(prompt: Prompt) -> str:
    """Return the answer that must be accepted: a final answer, a program or an expression; "" if the row has none."""
    answer = _answer(prompt)
    return reference_of(prompt) or solution(prompt.columns) if answer is None else final_of(answer)


def _answer(prompt: Prompt) -> Any:
    """Return the column `answer`, or None if it holds the tests of a program."""
    answer = prompt.columns.get("answer")
    return None if holds_tests(answer) else answer


def _known(
    rewards: RewardSet, given: Sequence[tuple[Prompt, str]], max_unscored: float
) -> tuple[str | None, list[Finding], list[float]]:
    """Return the form that the rewards read, the findings for right, empty and wrong answers, and all scores.

    A completion without a score says nothing about right and wrong; it is counted separately.
    """
    if not given:
        text = "no row has a gold answer, or no reward reads it: right and wrong answers are unknown"
        return None, [finding("gold answers", "skipped", None, "", text)], []
    prompts, golds = [prompt for prompt, _ in given], [gold for _, gold in given]
    is_program = _answer(prompts[0]) is None and bool(reference_of(prompts[0]))
    runs_programs = any(one.builtin is BUILTINS["code"] for one in rewards.components)
    forms = [PROGRAM_FORM] if is_program else [*[PROGRAM_FORM] * runs_programs, *FORMS]
    tried = {form: Answers.of(rewards, prompts, [fill(form, gold) for gold in golds]) for form in forms}
    worst = min((value for answers in tried.values() for value in answers.values), default=0.0)
    form = max(forms, key=lambda name: tried[name].mean_with(worst))
    right = tried[form]
    empty = Answers.of(rewards, prompts, [""] * len(golds))
    wrong = Answers.of(rewards, prompts, [fill(form, other) for other in _others(golds)])
    seen = [*right.values, *empty.values, *wrong.values]
    low = min(seen, default=0.0)
    high = statistics.median([value for value in right.values if value > low] or [low])
    accept = (low + high) / 2 if high > low else math.inf
    findings = [
        _gold_finding(right, accept, high),
        _few("empty answers", empty, accept, 0.0),
        _few("answers of other rows", wrong, accept, WRONG_ACCEPTED),
        about_unscored("unscored answers", [answers.scores for answers in (right, empty, wrong)], max_unscored),
    ]
    return form, findings, seen


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Completions whose right score is known, one for each prompt, and their rewards."""

    texts: tuple[str, ...]
    """Texts of the completions that have a score."""
    values: tuple[float, ...]
    reasons: tuple[str, ...]
    """What the rewards say about each of them, such as the test that failed; "" if they say nothing."""
    scores: Scores

    @staticmethod
    def of(rewards: RewardSet, prompts: Sequence[Prompt], texts: Sequence[str]) -> Answers:
        scores = rewards.score(prompts, [[completion(text)] for text in texts])
        found = [number for number, (value,) in enumerate(scores.rewards_PG) if value == value]
        return Answers(
            texts=tuple(texts[number] for number in found),
            values=tuple(scores.rewards_PG[number][0] for number in found),
            reasons=tuple(_reasons(scores, number) for number in found),
            scores=scores,
        )

    def mean_with(self, value: float) -> float:
        """Return the mean, with this value for completions without a score."""
        missing = len(self.scores.rewards_PG) - len(self.values)
        return statistics.fmean([*self.values, *[value] * missing])

    def accepted(self, accept: float) -> list[str]:
        return [text for text, value in zip(self.texts, self.values, strict=True) if value >= accept]

    def share(self, accept: float) -> float:
        """Return the accepted share of the completions that have a score; 0 if none has one."""
        return len(self.accepted(accept)) / max(1, len(self.values))


def _reasons(scores: Scores, row: int) -> str:
    """The verdicts of all rewards that did not find the one completion of a row correct."""
    given = {label: verdicts[row][0] for label, verdicts in scores.verdicts.items()}
    return "; ".join(
        f"{label}: {verdict.reason}" + (f", {verdict.detail}" if verdict.detail else "")
        for label, verdict in given.items()
        if verdict is not None and verdict.reason != "correct"
    )


def _gold_finding(right: Answers, accept: float, reward: float) -> Finding:
    """How many right answers are accepted?"""
    share = right.share(accept)
    missed = [
        f"not accepted: {quote(text)}" + (f"  {reason}" if reason else "")
        for text, value, reason in zip(right.texts, right.values, right.reasons, strict=True)
        if value < accept
    ]
    text = f"{len(right.values) - len(missed)} of {len(right.values)} accepted, reward {reward:g}"
    if right.values and not math.isfinite(accept):
        text = f"right, empty and wrong answers all got {reward:g}"
    return finding(
        "gold answers",
        "ok" if share >= GOLD_ACCEPTED else "fail",
        share,
        f"at least {GOLD_ACCEPTED:.0%} are accepted when they are stated",
        text,
        missed[:SHOWN],
    )


def _few(check: str, answers: Answers, accept: float, limit: float) -> Finding:
    """How many answers that deserve no reward are accepted?"""
    share, taken = answers.share(accept), answers.accepted(accept)
    mean = f", mean reward {statistics.fmean(answers.values):g}" if answers.values else ""
    return finding(
        check,
        "ok" if share <= limit else "fail",
        share,
        f"at most {limit:.0%} are accepted",
        f"{len(taken)} of {len(answers.values)} accepted{mean}",
        [f"accepted: {quote(text)}" for text in taken[:SHOWN]],
    )


def _others(golds: Sequence[str]) -> list[str]:
    """Return, for each gold answer, the next one that differs from it; if all are the same, a text of no row."""
    around = [*golds, *golds]
    return [
        next((other for other in around[place + 1 : place + len(golds)] if other != gold), "1234567")
        for place, gold in enumerate(golds)
    ]


# --- from a config, or from a reward and data ------------------------------------------------------------------------


def try_config(
    config: RunConfig, *, folder: Path, with_model: bool = True, prompts: int = 32, samples: int | None = None
) -> Trial:
    """Try the rewards of a run on its training data, and on answers of its model before training.

    `folder` is the folder of the config. The model gives `samples` answers (default: the group size) to each of at most
    `prompts` prompts. Raises what a run with this config would raise before its first step.
    """
    train = read_split(config.data, config.seed).train
    rows = drawn_rows(train, config.seed)
    with ExitStack() as stack:
        found = build_rewards(in_folder(config.rewards, folder), device=config.model.device, training=True)
        rewards = stack.enter_context(found)
        acting = Acting.of(config, stack)
        limits = {"max_turns": config.sampling.max_turns, "max_unscored": config.guards.max_unscored}
        plain = plain_prompts(rows, config.data) if acting or not with_model else []
        about_turns = [] if acting is None else try_environment(acting.sessions, plain, **limits)
        if not with_model:
            rewards.check(plain, "training data")
            return try_rewards(
                rewards,
                plain,
                sampling=config.sampling,
                max_unscored=config.guards.max_unscored,
                of_rows=len(train),
                before=about_turns,
            )
        loaded = load_model(resolve_model_path(config.model, config.seed))
        sampler = make_sampler(loaded)
        rewards.bind(sampler, config.model.chat_template_kwargs)
        renderer = Renderer.of(config.data, loaded.tokenizer, config.model.chat_template_kwargs)
        renderer = renderer if acting is None else replace(renderer, tools=acting.schemas)
        rendered = prompt_sets(config, Split(rows, []), loaded, renderer)[0].prompts
        rewards.check(rendered, "training data")
        return try_rewards(
            rewards,
            rendered,
            sampling=config.sampling,
            sampler=sampler if acting is None else acting.around(sampler, renderer, loaded.eos_ids),
            before=[*about_turns, *about_unknown(unknown_text(rendered, (), loaded.tokenizer, loaded.eos_ids))],
            sampled_prompts=prompts,
            samples=samples,
            max_truncated=config.guards.max_truncated,
            max_unscored=config.guards.max_unscored,
            seed=config.seed,
            of_rows=len(train),
        )


def about_unknown(text: UnknownText) -> list[Finding]:
    """Findings about text and gold answers that the tokenizer cannot write; none if it can write all of them. They are
    warnings: only rewards that compare texts need the same text."""
    found, limit = [], "the tokenizer can write all text"
    if (one := text.about_text()) is not None:
        found.append(finding("text of prompts", "warn", None, limit, one.message, [one.fix]))
    if (one := text.about_golds()) is not None:
        found.append(finding("text of gold answers", "warn", None, limit, one.message, [one.fix]))
    return found


def drawn_rows(rows: Sequence[Row], seed: int) -> list[Row]:
    """Draw at most MOST_ROWS rows at random, in random order: the first rows of a file may be its easiest."""
    chosen = random.Random(f"reward test {seed}").sample(range(len(rows)), min(MOST_ROWS, len(rows)))
    return [rows[place] for place in chosen]
