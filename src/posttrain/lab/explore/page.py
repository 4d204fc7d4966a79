"""Assembles the page from the template, style and scripts of this folder, and embeds the facts, numbers and advice."""

from __future__ import annotations

import functools
import importlib.resources
import inspect
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from string import Template
from typing import Any

from posttrain.algorithms import ALGORITHMS, Algorithm
from posttrain.explain import NeedFact, explain, options_of_choices
from posttrain.files import write_atomically
from posttrain.lab.advise.guides import from_rewards, guides, samples
from posttrain.lab.explore.choices import Choice, choices, fixed_settings, settings_by_value, words, written
from posttrain.lab.explore.plan_numbers import Numbers, device_of
from posttrain.lab.explore.walk import Question, Walk, questions
from posttrain.report.document import hash_of
from posttrain.report.text import escaped, script_json

SCRIPTS = ("explore.js", "memory.js", "facts.js", "walk.js")
START = "grpo"
"""Algorithm that the page shows at the start."""


def write_page(path: Path | str) -> Path:
    """Write the explorer to `path`. Raises `DoesNotFit` or an OSError if the file cannot be written."""
    path = Path(path)
    write_atomically(path, render())
    return path


def render(offered: Mapping[str, Choice] | None = None, asked: Sequence[Question] | None = None) -> str:
    """Return the page as HTML. It needs no network, and its security policy allows only its own style and script.

    Plans every possible selection and gives every combination of answers to the advisor, which takes seconds. Fewer
    choices `offered` and questions `asked` take less time.
    """
    whole = offered is None and asked is None
    offered = choices() if offered is None else offered
    carried = everything() if whole else content(offered, questions() if asked is None else asked)
    style, script = _asset("explore.css"), "\n".join(_asset(name) for name in SCRIPTS)
    return Template(_asset("page.html")).substitute(
        policy=f"default-src 'none'; style-src '{hash_of(style)}'; script-src '{hash_of(script)}'; base-uri 'none'; "
        "form-action 'none'",
        style=style,
        script=script,
        data=script_json(carried),
        first=_algorithm_options(START),
        second=_algorithm_options(None),
        model_fields=_fields(offered, hardware=False),
        hardware_fields=_fields(offered, hardware=True),
        footer=escaped(f"Written by posttrain {version('posttrain')}."),
    )


@functools.cache
def everything() -> dict[str, Any]:
    """Return the content of the full page. Computed once."""
    return content(choices(), questions())


def content(offered: Mapping[str, Choice], asked: Sequence[Question]) -> dict[str, Any]:
    """Return the data for the script."""
    numbers = Numbers(offered)
    algorithms = [facts_of(kind) | {"shapes": numbers.shapes_of(key)} for key, kind in ALGORITHMS.that_load()]
    return {
        "algorithms": algorithms,
        "devices": [device_of(key) for key in offered["device"].values],
        "walk": Walk(questions=asked).to_json(),
        **numbers.to_json(),
    }


def _algorithm_options(chosen: str | None) -> str:
    families: dict[str, list[str]] = {}
    for key, kind in ALGORITHMS.that_load():
        name = kind.card.title.partition(":")[0]
        families.setdefault(family_of(kind), []).append(_option(key, name, key == chosen))
    return "".join(
        f'<optgroup label="{escaped(name)}">{"".join(options)}</optgroup>' for name, options in families.items()
    )


def _option(key: str, label: str, chosen: bool) -> str:
    return f'<option value="{escaped(key)}"{" selected" if chosen else ""}>{escaped(label)}</option>'


def _fields(offered: Mapping[str, Choice], *, hardware: bool) -> str:
    return "\n".join(_field(choice) for choice in offered.values() if choice.hardware == hardware)


def _field(choice: Choice) -> str:
    """Return a list or a row of buttons as HTML, both with a name for screen readers."""
    attributes = f'data-said="{escaped(choice.said)}"{" data-online" if choice.online else ""}'
    label = escaped(choice.label)
    if not choice.switch:
        options = "".join(_option(key, text, key == choice.start) for key, text in choice.values.items())
        select = f'<select id="{choice.name}" name="{choice.name}" {attributes}>{options}</select>'
        return f'<div class="field"><label for="{choice.name}">{label}</label>{select}</div>'
    buttons = "".join(
        f'<label><input type="radio" name="{choice.name}" value="{key}"{" checked" if key == choice.start else ""}>'
        f"<span>{escaped(text)}</span></label>"
        for key, text in choice.values.items()
    )
    name = f'<span class="name" id="{choice.name}-name">{label}</span>'
    group = f'<div class="switch" role="radiogroup" aria-labelledby="{choice.name}-name" {attributes}>{buttons}</div>'
    return f'<div class="field">{name}{group}</div>'


def _asset(name: str) -> str:
    return (importlib.resources.files("posttrain.lab.explore") / name).read_text(encoding="utf-8")


# --- one algorithm on the page -----------------------------------------------------------------------------------


REWARD_MODELS = "To become a reward"


def facts_of(kind: type[Algorithm]) -> dict[str, Any]:
    """Return the facts of one algorithm for the page."""
    told, online, options = explain(kind.key), samples(kind), options_of_choices()
    return {
        "key": told.key,
        "name": told.title.partition(":")[0],
        "title": told.title,
        "paper": told.paper,
        "summary": told.summary,
        "online": online,
        "learns": "online: it samples its own answers" if online else "offline: it learns from given rows",
        "data": words()["data"][told.data_kind],
        "reward": reward_source(kind),
        "group": group_of(kind),
        "models": list(told.models),
        "needs": [_need(need) for need in told.needs],
        "choices": {name: [option, options.get(name, {}).get(option, "")] for name, option in told.choices.items()},
        "use_when": told.use_when,
        "avoid_when": told.avoid_when,
        "failures": [failure.what for failure in guides().failures if told.key in failure.of],
        "fixed": written(fixed_settings(kind)),
        "plan": {
            choice: {value: written(settings) for value, settings in values.items()}
            for choice, values in settings_by_value(kind).items()
        },
        "formula": inspect.cleandoc(f"\n{told.formula}"),
        "settings": [f"{setting.name} = {_value(setting.default)}" for setting in told.settings],
    }


def family_of(kind: type[Algorithm]) -> str:
    """Return the heading of the algorithm's group in the list."""
    return REWARD_MODELS if "scores" in kind().needs else words()["families"][kind.data_kind]


def reward_source(kind: type[Algorithm]) -> str:
    if "scores" in kind().needs:
        return "none: it is trained to give rewards"
    if not samples(kind):
        return words()["reward"][kind.data_kind]
    return "a verifier, a reward model, a judge or any function" if from_rewards(kind) else "none: a teacher model"


def group_of(kind: type[Algorithm]) -> str:
    least = kind().group_size_needed
    return "none are sampled" if not samples(kind) else "one is enough" if least == 1 else f"at least {least}"


def _need(need: NeedFact) -> str:
    switched = "" if need.by_default else f" (with {' or '.join(need.decided_by)})"
    return words()["needs"][need.name] + switched


def _value(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
