"""The judge as a component of a reward set: it takes groups of answers and returns outcomes and judgements.

Replies are cached on disk by the content of the question, and runs share them:

    <folder>/3f/3f9c...json     {"text": ..., "tokens": ..., "finish_reason": ..., "asked_again": ...}

The name is a hash of the judge (endpoint and model, or the weights), the messages, the sampling settings and the number
of the judgement. An endpoint's reply is kept if it led to a verdict: the server may be mended behind the same name, and
the questions that it left open are asked again. `asked_again`: the verdict is in the reply to the second question.

Files are written under another name and then renamed, so that a reader never sees a partial file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from posttrain.cache import cache_folder
from posttrain.errors import DoesNotFit
from posttrain.files import write_atomically
from posttrain.rewards.calls import Outcome, Signature
from posttrain.rewards.judge.endpoint import Endpoint
from posttrain.rewards.judge.modes import Mode, Task
from posttrain.rewards.judge.records import Backend, Conversation, Judgement, Reply
from posttrain.rewards.judge.substance import says_nothing
from posttrain.rewards.judge.templates import ASK_AGAIN, Template
from posttrain.rewards.missing import columns_known, missing_column
from posttrain.verify.verdict import Verdict

if TYPE_CHECKING:
    from posttrain.config import JudgeConfig
    from posttrain.engines.sampler import Judging
    from posttrain.rewards.judge.local import LocalJudge
    from posttrain.types import Prompt

FORM = Signature(batch=False, is_async=False, required=("prompt", "completion"), optional=(), takes_any=False)
"""A judge takes the arguments of a reward function for one sample. Its settings come from the section `judge`."""


class Graded(NamedTuple):
    """The outcomes and judgements for a set of answers."""

    outcomes: list[Outcome]
    judgements: tuple[Judgement, ...]


class Judge:
    """Judges the answers of a step. It decides without the model if it can, and asks all questions together."""

    def __init__(self, settings: JudgeConfig, *, label: str, folder: Path | None = None, device: str = "auto") -> None:
        """`folder` is the folder of the config. A model folder is loaded on first use."""
        self.settings, self.label = settings, label
        template = Template.of(settings.mode, path=settings.template, rubric=settings.rubric, folder=folder)
        self.mode = Mode(name=settings.mode, template=template, settings=settings)
        self.backend = _backend(settings, folder, device)
        sampling = {name: getattr(settings, name) for name in ("temperature", "top_p", "max_tokens", "request")}
        self.asks = Cached(self.backend, _cache(settings.cache), sampling, self._is_final)

    def bind_policy(self, sampler: Judging, template_kwargs: Mapping[str, Any]) -> None:
        """Set the sampler whose current weights judge, for `model: policy`. Other judges ignore it."""
        if not isinstance(self.backend, Endpoint) and self.backend.is_policy:
            self.backend.bind(sampler, template_kwargs)

    def keep_ledger(self, ledger: Path) -> None:
        """Set the file that records the cost of the run's judges, so that a budget holds for the whole run."""
        if isinstance(self.backend, Endpoint):
            self.backend.budget.keep_in(ledger)

    def check(self, prompts: Sequence[Prompt], what: str = "") -> None:
        """Check before training that the column for comparison exists and the model can be loaded.

        `what` names the prompts in the error.
        """
        column = self.settings.column
        available = sorted(columns_known(prompts))
        if column is not None and prompts and column not in available:
            ways = ["set judge.against to the column with the reference", "set data.answer for the column answer"]
            raise missing_column(f'judge "{self.label}" compares with', column, available, what=what, ways=ways)
        self._control()

    def __call__(self, calls: Sequence[Mapping[str, Any]]) -> Graded:
        """One outcome per `{"prompt": Prompt, "completion": Completion, "group": int, "number": int}`, group by group.

        The value is None if the mode does not apply: there is no other answer, or no text in the column.
        """
        graded = self.grade(_groups(calls))
        return Graded(
            [outcome for group in graded for outcome in group.outcomes],
            tuple(judgement for group in graded for judgement in group.judgements),
        )

    @property
    def is_remote(self) -> bool:
        """Does another machine compute the answers, so that questions cost no time on this one?"""
        return isinstance(self.backend, Endpoint)

    def abandon(self) -> None:
        """Give up the questions that other threads are asking."""
        if isinstance(self.backend, Endpoint):
            self.backend.abandon()

    def grade(self, groups: Sequence[Sequence[Mapping[str, Any]]]) -> list[Graded]:
        """Judge calls that are already grouped. Safe to call from two threads if the judge `is_remote`."""
        control = self._control()
        tasks = [
            task
            for place, group in enumerate(groups)
            for task in self.mode.plan(place, group[0]["prompt"], [call["completion"].text for call in group], control)
        ]
        judgements = self._judge(tasks, groups)
        shares = _by_completion(tasks, judgements)
        return [
            Graded(
                [
                    _outcome(shares.get((place, number), []), self.mode.judged(call["completion"].text))
                    for number, call in enumerate(group)
                ],
                tuple(judgement for task, judgement in zip(tasks, judgements, strict=True) if task.place == place),
            )
            for place, group in enumerate(groups)
        ]

    def _judge(self, tasks: Sequence[Task], groups: Sequence[Sequence[Mapping[str, Any]]]) -> list[Judgement]:
        replies = iter(self._ask([question for task in tasks for question in task.questions]))
        judgements = []
        for task in tasks:
            own, group = tuple(next(replies) for _ in task.questions), groups[task.place]
            score = self.mode.combine([reply.verdict for reply in own]) if own else task.score
            judgements.append(
                Judgement(
                    label=self.label,
                    prompt=group[0]["prompt"].index,
                    completion=group[task.completion]["number"],
                    opponent=None if task.opponent is None else group[task.opponent]["number"],
                    score=score,
                    note=task.note,
                    replies=own,
                )
            )
        return judgements

    def _ask(self, questions: Sequence[Conversation]) -> list[Reply]:
        """Replies with their verdicts. A judge that gave none is asked once more, for the last line only."""
        replies = [self._read(reply) for reply in self.asks.answer(questions)]
        silent = [place for place, reply in enumerate(replies) if reply.verdict is None and not reply.error]
        once_more = [_once_more(questions[place], replies[place].text, ASK_AGAIN[self.mode.name]) for place in silent]
        for place, second in zip(silent, map(self._read, self.asks.answer(once_more)), strict=True):
            if second.verdict is not None and not replies[place].cached:
                self.asks.keep(questions[place], replies[place])
            replies[place] = _together(replies[place], second)
        return replies

    def _is_final(self, text: str) -> bool:
        """Would the same question get this reply again? A local model repeats itself, so it may lack a verdict."""
        return not self.is_remote or self.mode.parse(text) is not None

    def _read(self, reply: Reply) -> Reply:
        return reply if reply.error else replace(reply, verdict=self.mode.parse(reply.text))

    def _control(self) -> Collection[str]:
        return () if isinstance(self.backend, Endpoint) else self.backend.control


def _backend(settings: JudgeConfig, folder: Path | None, device: str) -> Endpoint | LocalJudge:
    if settings.url is not None:
        return Endpoint(settings)
    from posttrain.rewards.judge.local import LocalJudge  # imports transformers

    return LocalJudge(settings, folder=folder, device=device)


def _cache(setting: bool | str) -> Path | None:
    if setting is False:
        return None
    return cache_folder("judgements") if setting is True else Path(setting).expanduser()


def _groups(calls: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """The calls of each group. Answers of a group may be missing, because their trajectories failed."""
    return [list(group) for _, group in groupby(calls, key=itemgetter("group"))]


def _once_more(question: Conversation, text: str, request: str) -> Conversation:
    spoken = ({"role": "assistant", "content": text}, {"role": "user", "content": request})
    return replace(question, messages=(*question.messages, *spoken))


def _together(first: Reply, second: Reply) -> Reply:
    """One reply from two: both texts, their total cost, and the verdict or the error of the second."""
    reasons = (first.finish_reason, second.finish_reason)
    return Reply(
        text=f"{first.text}\n\n{second.text}" if second.text else first.text,
        error=second.error,
        verdict=second.verdict,
        finish_reason="length" if "length" in reasons else second.finish_reason,
        seconds=first.seconds + second.seconds,
        calls=first.calls + second.calls,
        tokens=first.tokens + second.tokens,
        cached=first.cached and second.cached,
    )


Share = tuple[Judgement, bool]
"""A judgement on a completion, and whether its score is for this completion or for the opponent."""


def _by_completion(tasks: Sequence[Task], judgements: Sequence[Judgement]) -> dict[tuple[int, int], list[Share]]:
    """The judgements on each completion, by (place of the group, number of the completion)."""
    found: dict[tuple[int, int], list[Share]] = {}
    for task, judgement in zip(tasks, judgements, strict=True):
        found.setdefault((task.place, task.completion), []).append((judgement, True))
        if task.opponent is not None:
            found.setdefault((task.place, task.opponent), []).append((judgement, False))
    return found


def _outcome(own: Sequence[Share], text: str) -> Outcome:
    """The mean score over the judgements of one completion. A failure if none of them has a verdict."""
    if not own:
        return Outcome(kind="value", value=None)
    seconds = sum(reply.seconds for judgement, _ in own for reply in judgement.replies)
    scores = [j.score if is_first else 1.0 - j.score for j, is_first in own if j.score is not None]
    if scores:
        score = sum(scores) / len(scores)
        notes = dict.fromkeys(judgement.note for judgement, _ in own if judgement.note)
        verdict = Verdict(score, _reason(score, own, text), extracted=text, seconds=seconds, detail="; ".join(notes))
        return Outcome(kind="value", value=score, verdict=verdict.to_json(), seconds=seconds)
    errors = [reply.error for judgement, _ in own for reply in judgement.replies if reply.error]
    return Outcome(kind="exception", message=errors[0] if errors else _without_verdict(own[0][0]), seconds=seconds)


def _reason(score: float, own: Sequence[Share], text: str) -> str:
    """The reason for a completion's score. `ambiguous`: the order changed the verdict in each of its comparisons.

    A tie, and a mean of wins and losses, are `partial`.
    """
    if says_nothing(text):
        return "no_answer"
    if all(judgement.changed_with_order for judgement, _ in own):
        return "ambiguous"
    return "correct" if score == 1 else "partial" if score > 0 else "wrong"


def _without_verdict(judgement: Judgement) -> str:
    """What the judge said instead of a verdict, and why it ended there if the server says so."""
    last = next(reply for reply in judgement.replies if reply.verdict is None)
    said = " ".join(last.text.split())[-80:]
    why = "" if last.finish_reason in ("", "stop", "eos") else f" (finish_reason {last.finish_reason})"
    if last.finish_reason == "length":
        why += ": raise judge.max_tokens, or turn the judge's reasoning off"
    shown = f"its reply ends with {said!r}" if said else "its reply is empty"
    return f"the judge gave no verdict when asked twice; {shown}{why}"


class Cached:
    """A backend that is asked only those questions whose replies are not on disk."""

    def __init__(
        self, backend: Backend, folder: Path | None, sampling: Mapping[str, Any], is_final: Callable[[str], bool]
    ) -> None:
        """A `folder` of None keeps nothing. `sampling` has the other settings that influence a reply.

        A reply is kept as it arrives if its text `is_final`; `keep` keeps it later."""
        self.backend, self.folder, self.sampling, self.is_final = backend, folder, dict(sampling), is_final

    def answer(self, conversations: Sequence[Conversation]) -> list[Reply]:
        """One reply per conversation, in order. Equal questions are asked once. Failures are not kept."""
        identity = self.backend.identity() if self.folder is not None else None
        keys = [self._key(identity or "", conversation) for conversation in conversations]
        kept = {} if identity is None else {key: reply for key in dict.fromkeys(keys) if (reply := self._read(key))}
        places = {key: place for place, key in reversed(list(enumerate(keys))) if key not in kept}
        open_keys = sorted(places, key=places.__getitem__)

        def keep(place: int, reply: Reply) -> None:
            if identity is not None and not reply.error and self.is_final(reply.text):
                self._write(open_keys[place], reply)

        asked = self.backend.answer([conversations[places[key]] for key in open_keys], keep) if open_keys else []
        found = dict(zip(open_keys, asked, strict=True))
        return [
            kept[key] if key in kept else found[key] if places[key] == place else _again(found[key])
            for place, key in enumerate(keys)
        ]

    def keep(self, conversation: Conversation, reply: Reply) -> None:
        """Keep a reply whose verdict came when the judge was asked again."""
        identity = self.backend.identity() if self.folder is not None else None
        if identity is not None:
            self._write(self._key(identity, conversation), reply, asked_again=True)

    def _key(self, identity: str, conversation: Conversation) -> str:
        content = json.dumps([identity, conversation.messages, conversation.sample, self.sampling], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / key[:2] / f"{key}.json"

    def _read(self, key: str) -> Reply | None:
        """The kept reply. Earlier versions also kept what led to no verdict; such a file is no reply."""
        try:
            saved = json.loads(self._path(key).read_bytes())
            text, reason = saved["text"], saved.get("finish_reason", "")
            is_kept = saved.get("asked_again", False) or self.is_final(text)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None
        return Reply(text=text, finish_reason=reason, cached=True) if is_kept else None

    def _write(self, key: str, reply: Reply, *, asked_again: bool = False) -> None:
        """Cache a reply if possible. A failed write costs another question later, and never the run."""
        saved = {name: getattr(reply, name) for name in ("text", "tokens", "finish_reason")}
        with suppress(OSError, DoesNotFit):
            write_atomically(self._path(key), json.dumps({**saved, "asked_again": asked_again}))


def _again(reply: Reply) -> Reply:
    """The reply to a question that occurs again within one call."""
    return reply if reply.error else Reply(text=reply.text, finish_reason=reply.finish_reason, cached=True)
