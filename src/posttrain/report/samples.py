"""The samples in the report: completions by prompt group, with every token coloured by its advantage."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.files import read_inside
from posttrain.report.store import RunRecord, is_number, number, read_rollouts
from posttrain.report.svg import compact
from posttrain.report.text import cut, escaped

MAX_GROUPS, MAX_ROWS, MAX_TOKENS, MAX_CHARACTERS = 6, 8, 500, 4000
"""Maximum groups per step, rows per group, tokens and characters per completion. The parquet files hold everything."""
MAX_SAID = 300
"""Maximum characters of a reason, an extracted answer or a gold answer."""
_LEVELS = 4
_ENDS = {"length": "cut off", "stop": "stop string"}
"""Finish reason -> its words, for the reasons that are worth mentioning."""

Decode = Callable[[Sequence[int]], list[str]]
"""Token ids -> one piece of text per id; the pieces joined are the decoded text."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """All answers to one prompt in one step."""

    prompt: str
    rows: list[dict[str, Any]]

    @property
    def rewards(self) -> list[float]:
        return [float(row["reward"]) for row in self.rows if row.get("scored", True) and is_number(row.get("reward"))]

    @property
    def has_signal(self) -> bool:
        return len(set(self.rewards)) > 1

    @property
    def found(self) -> list[tuple[str, int]]:
        """The extracted answers with their counts, most frequent first; empty if no reward extracts answers.

        Completions from which no answer could be extracted count as "none".
        """
        given = [next((text for _, name, text in _said(row) if name == "extracted"), "none") for row in self.rows]
        return Counter(given).most_common() if set(given) != {"none"} else []

    def unlike(self) -> list[tuple[dict[str, Any], int]]:
        """Return the distinct answers, each with its count, the best first."""
        ranked = sorted(self.rows, key=lambda row: -(number(row.get("reward")) or 0.0))
        alike: dict[Any, list[dict[str, Any]]] = {}
        for row in ranked:
            key = (str(row.get("completion")), len(_ids(row)), row.get("reward"), str(row.get("finish_reason")))
            alike.setdefault(key, []).append(row)
        return [(rows[0], len(rows)) for rows in alike.values()]


def samples_html(run: RunRecord) -> str:
    """Return the samples of the first, the middle and the last recorded step; empty if none can be read."""
    decode = token_pieces(run)
    steps = chosen_steps(run.rollout_steps)
    shown = [(step, read_rollouts(run.folder, step, run.notes)) for step in steps]
    parts = [_step_html(step, rows, decode, opened=step == steps[-1]) for step, rows in shown if rows]
    if parts and decode is None:
        parts.insert(
            0, '<p class="hint">No tokenizer could be opened in the last checkpoint: tokens are shown as ids.</p>'
        )
    return "\n".join(parts)


def chosen_steps(steps: Sequence[int]) -> list[int]:
    """Return the first, the middle and the last step.

    >>> chosen_steps([1, 2, 3, 4, 9])
    [1, 3, 9]
    """
    return sorted({steps[0], steps[len(steps) // 2], steps[-1]}) if steps else []


def groups_of(rows: Sequence[dict[str, Any]]) -> list[Group]:
    """Return the rows by group, in the order of the file."""
    by_group: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        by_group.setdefault(row.get("group", row.get("prompt_index")), []).append(row)
    return [Group(prompt=str(members[0].get("prompt") or ""), rows=members) for members in by_group.values()]


def token_pieces(run: RunRecord) -> Decode | None:
    """Return a decoder from the tokenizer.json of the newest checkpoint; None if it is missing or cannot be read."""
    if run.last_model is None:
        return None
    try:
        from tokenizers import Tokenizer
        from tokenizers.decoders import DecodeStream

        content = read_inside(run.folder, run.last_model.relative_to(run.folder) / "tokenizer.json")
        tokenizer = Tokenizer.from_str(content.decode("utf-8"))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # no library, no file or a damaged one: show ids (a panic in Rust is not an Exception)
        return None

    def decode(ids: Sequence[int]) -> list[str]:
        """Decode each token. A character of several tokens appears with its last token."""
        stream = DecodeStream(skip_special_tokens=False)
        return [stream.step(tokenizer, token) or "" for token in ids]

    return decode


def _step_html(step: int, rows: Sequence[dict[str, Any]], decode: Decode | None, *, opened: bool) -> str:
    groups = groups_of(rows)
    chosen = sorted(range(len(groups)), key=lambda i: (not groups[i].has_signal, i))[:MAX_GROUPS]
    shown = [groups[i] for i in chosen]
    scale = largest_advantage(shown)
    signal = sum(group.has_signal for group in groups)
    left_out = f", {len(shown)} of them shown, those with signal first" if len(shown) < len(groups) else ""
    facts = f"{len(groups)} prompts{left_out} · signal in {signal} of {len(groups)} groups"
    return f"""<details class="step"{" open" if opened else ""}>
<summary><h3>Step {step}</h3><span>{facts}</span></summary>
{legend(scale)}
{"".join(group_html(group, scale, decode) for group in shown)}
</details>"""


def largest_advantage(groups: Sequence[Group]) -> float:
    """Return the largest absolute advantage of any token in the groups. It gets the deepest colour."""
    return max((abs(a) for group in groups for row in group.rows for a in _advantages(row)), default=0.0)


def legend(scale: float) -> str:
    """Return the legend of the token colours."""
    if scale == 0:
        return '<p class="legend">All advantages of this step are 0: these answers changed no weight.</p>'
    shades = [f"n{i}" for i in range(_LEVELS, 0, -1)] + ["z"] + [f"p{i}" for i in range(1, _LEVELS + 1)]
    swatches = "".join(f'<i class="{shade}"></i>' for shade in shades)
    return (
        f'<p class="legend">advantage per token <b>−{compact(scale)}</b> <span class="swatches">{swatches}</span> '
        f"<b>+{compact(scale)}</b> made less likely (dotted line) · made more likely (solid line)</p>"
    )


def group_html(group: Group, scale: float, decode: Decode | None, most_rows: int = MAX_ROWS) -> str:
    """Return a prompt and its answers, the best first, as HTML."""
    prompt, note = cut(group.prompt, MAX_CHARACTERS)
    rewards = group.rewards
    unjudged = "no reward" if group.rows[0].get("scored", True) is None else "no reward could be computed"
    facts = f"mean reward {compact(statistics.fmean(rewards))}" if rewards else unjudged
    if rewards and not group.has_signal:
        facts += " · all equal, no signal"
    if group.rows[0].get("discarded"):
        facts += " · replaced by another group, not trained"
    rows = group.unlike()
    hidden = sum(times for _, times in rows[most_rows:])
    more = f'<p class="hint">{hidden} more answers in the file.</p>' if hidden else ""
    head = f'<pre class="prompt" dir="auto" tabindex="0">{escaped(prompt)}</pre>{_cut_note(note)}'
    return f"""<article class="group">
<header>{head}<p class="facts">{facts}</p>{_answers_html(group)}</header>
{"".join(_row_html(row, times, scale, decode) for row, times in rows[:most_rows])}{more}
</article>"""


def _answers_html(group: Group) -> str:
    """Return the gold answer, and the extracted answers with their counts, as HTML."""
    gold = group.rows[0].get("answer")
    parts = [] if gold is None else [f"gold answer {_quoted(gold)}"]
    if found := group.found:
        parts.append("given " + ", ".join(f"{_quoted(text)} × {times}" for text, times in found[:MAX_ROWS]))
    return f'<p class="facts">{" · ".join(parts)}</p>' if parts else ""


def _quoted(text: Any) -> str:
    return f'<b dir="auto">{escaped(cut(str(text), MAX_SAID)[0])}</b>'


def _said(row: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield (reward, "reason" or "extracted", text) for everything that the rewards say about an answer."""
    for key, value in row.items():
        label, _, name = key.removeprefix("reward/").rpartition("/")
        if key.startswith("reward/") and label and name in ("reason", "extracted") and isinstance(value, str) and value:
            yield label, name, value


def _row_html(row: Mapping[str, Any], times: int, scale: float, decode: Decode | None) -> str:
    reward = number(row.get("reward"))
    scored = row.get("scored", True) and reward is not None
    missing = "" if row.get("scored", True) is None else '<b class="reward none">unscored</b>'
    badge = f'<b class="reward">{compact(reward or 0.0)}</b>' if scored else missing
    said = {f"reward/{label}/{name}" for label in _labels(row) for name in ("reason", "extracted", "seconds")}
    parts = {key.removeprefix("reward/"): row[key] for key in row if key.startswith("reward/") and key not in said}
    facts = [
        f"{times} × the same answer" if times > 1 else "",
        f"advantage {_signed(number(row.get('advantage')))}",
        f"{len(_ids(row))} tokens",
        *_turns(row),
    ]
    facts.append(_ENDS.get(str(row.get("finish_reason")), ""))
    if list(parts.values()) != [row.get("reward")]:
        facts += [f"{escaped(label)} {_part(value)}" for label, value in parts.items()]
    checks = {name: value for name, value in row.items() if name.startswith("check/") and value is not None}
    facts += [f"{escaped(name)} {_part(value)}" for name, value in checks.items()]
    why = " · ".join(f"{escaped(label)} {name} {_quoted(text)}" for label, name, text in _said(row))
    why = f'<p class="facts">{why}</p>' if why else ""
    body, note = _tokens_html(row, scale, decode)
    return (
        f'<div class="row">{badge}<pre class="tokens" dir="auto" tabindex="0">{body}</pre>'
        f'<p class="facts">{" · ".join(fact for fact in facts if fact)}</p>{why}{_cut_note(note)}</div>'
    )


def _labels(row: Mapping[str, Any]) -> set[str]:
    """Return the names of rewards that give reasons: `math` if the row has `reward/math` and `reward/math/reason`."""
    return {key.removeprefix("reward/") for key in row if key.startswith("reward/") and f"{key}/reason" in row}


def _tokens_html(row: Mapping[str, Any], scale: float, decode: Decode | None) -> tuple[str, str]:
    """Return the completion's tokens as HTML spans, and a note if some were cut."""
    ids = _ids(row)
    if not ids:
        text, note = cut(str(row.get("completion") or ""), MAX_CHARACTERS)
        return escaped(text) or '<span class="empty">(empty)</span>', note
    advantages, logprobs = _advantages(row), iter(_floats(row.get("logprobs")))
    earned = iter(_turn_rewards(row))
    pieces, given = _pieces(ids[:MAX_TOKENS], decode), _given(row, len(ids))
    spans, used, shown = [], 0, 0
    for i, piece in enumerate(pieces):
        if used + len(piece) > MAX_CHARACTERS:
            break
        if not given[i] and (i == 0 or given[i - 1]):
            spans.append(_turn_begins(i, next(earned, None)))
        elif given[i] and not (i > 0 and given[i - 1]):
            spans.append('<br><i class="given">environment</i> ')
        advantage = advantages[i] if i < len(advantages) else 0.0
        logprob = None if given[i] else next(logprobs, None)
        values = f"{ids[i]}|{advantage:.3f}|{'' if logprob is None else f'{logprob:.3f}'}"
        kind = "given" if given[i] else shade(advantage, scale)
        spans.append(f'<span class="{kind}" data-t="{values}">{escaped(piece)}</span>')
        used, shown = used + len(piece), shown + 1
    note = f"cut here: {shown:,} of {len(ids):,} tokens shown" if shown < len(ids) else ""
    return "".join(spans), note


def _turn_begins(place: int, earned: float | None) -> str:
    """Return the label before a turn of the model: its reward, and "model" unless it is the first turn."""
    who = "model" if place else ""
    reward = "" if earned is None else f"reward {earned:+.3g}"
    said = " · ".join(filter(None, (who, reward)))
    return f'{"<br>" if place else ""}<i class="given">{said}</i> ' if said else ""


def _turn_rewards(row: Mapping[str, Any]) -> list[float | None]:
    """Return the environment's reward for each turn."""
    try:
        given = json.loads(row.get("episode") or "null")["turn_rewards"]
        return [float(reward) if is_number(reward) else None for reward in given]
    except (ValueError, LookupError, TypeError, RecursionError):
        return []


def _given(row: Mapping[str, Any], length: int) -> list[bool]:
    """Return a flag for each id: did the environment write it?"""
    found = [False] * length
    for stretch in row.get("given") or []:
        if isinstance(stretch, list) and len(stretch) == 2 and all(isinstance(edge, int) for edge in stretch):
            begin, end = (min(max(0, edge), length) for edge in stretch)
            found[begin:end] = [True] * (end - begin)
    return found


def _turns(row: Mapping[str, Any]) -> list[str]:
    """Return the facts about a trajectory: its turns, its tool calls and how it ended."""
    try:
        episode = json.loads(row.get("episode") or "null")
        calls = Counter(map(str, episode["calls"]))
        turns = f"{int(episode['turns'])} turns"
        ended = str(episode["failure"] or ("" if episode["ended"] == "done" else episode["ended"]))
        wrong = len(episode["errors"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return []
    named = [f"{escaped(cut(name, MAX_SAID)[0])} × {times}" for name, times in calls.most_common(MAX_ROWS)]
    return [turns, *named, f"{wrong} failed calls" if wrong else "", escaped(ended)]


def shade(advantage: float, scale: float) -> str:
    """CSS class of an advantage: n4 (most negative) ... z (none) ... p4.

    >>> [shade(a, 2.0) for a in (-2.0, -0.1, 0.0, 0.6, 2.0)]
    ['n4', 'n1', 'z', 'p2', 'p4']
    """
    if not scale > 0 or not math.isfinite(advantage) or advantage == 0:
        return "z"
    level = min(_LEVELS, max(1, math.ceil(abs(advantage) / scale * _LEVELS - 1e-9)))
    return f"{'p' if advantage > 0 else 'n'}{level}"


def _pieces(ids: Sequence[int], decode: Decode | None) -> list[str]:
    if decode is not None:
        try:
            return decode(ids)
        except Exception:  # the tokenizer does not know these ids: the model folder is another run's
            pass
    return [f"{token} " for token in ids]


def _ids(row: Mapping[str, Any]) -> list[int]:
    return [token for token in row.get("completion_ids") or [] if isinstance(token, int)]


def _advantages(row: Mapping[str, Any]) -> list[float]:
    return _floats(row.get("advantages")) or [number(row.get("advantage"), 0.0) or 0.0] * len(_ids(row))


def _floats(values: Any) -> list[float]:
    return [float(value) if is_number(value) else 0.0 for value in values] if isinstance(values, list) else []


def _part(value: Any) -> str:
    return compact(float(value)) if is_number(value) else "n/a"


def _signed(value: float | None) -> str:
    return "n/a" if value is None else f"{value:+.2f}"


def _cut_note(note: str) -> str:
    return f'<p class="hint">{note}; the rollouts file holds all of it.</p>' if note else ""
