"""The parts of docs/advise.md that are generated from the guides and ranges.

`python -m tests.lab.advise.written docs/advise.md` writes them again between their marks. A test compares them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.lab.advise.advisor import advise
from posttrain.lab.advise.facts import Facts
from posttrain.lab.advise.guides import Rule, guides, in_words
from posttrain.lab.advise.questions import questions
from posttrain.lab.advise.ranges import ranges

EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "output-reasoning": {"data": "verifier", "goal": "reasoning", "moe": True},
    "output-wishes": {"data": "pairs", "online": True, "priority": "quality,memory"},
    "output-nothing": {"data": "nothing"},
}
"""Name of a mark -> the facts of the command above it."""


def sections() -> dict[str, str]:
    """Return name of a mark -> the text between the mark and its end."""
    outputs = {name: _output(facts) for name, facts in EXAMPLES.items()}
    return outputs | {name: make() for name, make in TABLES.items()}


def _output(facts: Mapping[str, Any]) -> str:
    return f"```text\n{advise(**facts).render(details=1 if 'goal' in facts else 0)}```"


def _rules() -> str:
    rows = [(f"`{r.id}`", in_words(r.when), _effect(r), _because(r), _cited(r.source)) for r in guides().rules]
    return _table(("rule", "when", "points", "because", "source"), rows)


def _because(rule: Rule) -> str:
    """Return `a program checks answers; ppo: a critic learns ...`: a reason names its algorithms unless all have it."""
    of: dict[str, list[str]] = {}
    for key in (*rule.weigh, *sorted(rule.veto)):
        of.setdefault(rule.said_of(key).text, []).append(key)
    if len(of) == 1:
        return next(iter(of))
    return "; ".join(f"{_several(keys)}: {text}" for text, keys in of.items())


def _effect(rule: Rule) -> str:
    """Return `grpo +4, dapo +2`: algorithms with equal points come together, and long lists are shortened."""
    by_points: dict[float, list[str]] = {}
    for key, points in rule.weigh.items():
        by_points.setdefault(points, []).append(key)
    weighed = [
        f"{_several(keys)} {'+' if points > 0 else '−'}{abs(points):g}"
        for points, keys in sorted(by_points.items(), reverse=True)
    ]
    return "; ".join([*weighed, *([f"rules out {_several(sorted(rule.veto))}"] if rule.veto else [])])


def _several(keys: Sequence[str]) -> str:
    return ", ".join(keys) if len(keys) <= 4 else f"{', '.join(keys[:3])} and {len(keys) - 3} more"


def _before() -> str:
    rows = [(f"`{entry.id}`", in_words(entry.when), entry.text, _cited(entry.source)) for entry in guides().before]
    return _table(("", "when", "do", "source"), rows)


def _contradictions() -> str:
    entries = guides().contradictions
    return _table(
        ("wishes", "the honest answer", "source"),
        [(e.told["wishes"], e.told["answer"], _cited(e.source)) for e in entries],
    )


def _disagreements() -> str:
    rows = [
        (
            entry.told["question"],
            "; ".join(f"{side['says']} ({_cited((side['source'],))})" for side in entry.told["sides"]),
            entry.told["here"],
        )
        for entry in guides().disagreements
    ]
    return _table(("question", "what is said", "here"), rows)


def _failures() -> str:
    entries = guides().failures
    return _table(
        ("algorithms", "go wrong", "source"), [(_several(sorted(e.of)), e.what, _cited(e.source)) for e in entries]
    )


def _ranges() -> str:
    _, told = ranges()
    rows = [
        (f"`{r.setting}`", in_words(r.when), r.words, f"{r.usual:g}", _outside(r.above, r.below), r.source)
        for r in told
    ]
    return _table(("setting", "when", "published", "usual", "outside of it", "source"), rows)


def _outside(above: str, below: str) -> str:
    return " ".join(f"{side}: {text}" for side, text in (("Above", above), ("Below", below)) if text)


def _cited(keys: tuple[str, ...]) -> str:
    return "; ".join(guides().cited(keys))


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells)


def _questions() -> str:
    """Return the questions like on a screen, answered with Enter."""
    return "```text\n" + "\n".join(f"{question.asks}\n>" for question in questions()) + "\n```"


def _facts() -> str:
    rows = [
        (f"`--{name.replace('_', '-')}`", " ".join((told.description or "").split()))
        for name, told in Facts.model_fields.items()
    ]
    return _table(("fact", "meaning"), rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "questions": _questions,
    "facts": _facts,
    "rules": _rules,
    "before": _before,
    "contradictions": _contradictions,
    "disagreements": _disagreements,
    "failures": _failures,
    "ranges": _ranges,
}


def written(text: str, parts: Mapping[str, str]) -> str:
    """Return the page with the text between `<!-- NAME -->` and `<!-- /NAME -->` replaced."""
    for name, part in parts.items():
        mark = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text, found = mark.subn(lambda match, part=part: f"{match[1]}{part}\n{match[2]}", text)
        if not found:
            raise ValueError(f"the page has no mark <!-- {name} -->")
    return text


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(written(path.read_text(encoding="utf-8"), sections()), encoding="utf-8")
    print(path)
