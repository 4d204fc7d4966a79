"""The facts about an algorithm, read from its class: for `posttrain explain`, and for its page in docs/.

Nothing is written down twice. The formula is the docstring of the algorithm's file. The settings are its fields. The
needs of each setting are found by trying its values.

`page.py` writes the pages.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import PurePath
from typing import Any

from pydantic import TypeAdapter

from posttrain.algorithms import ALGORITHMS
from posttrain.algorithms.base import NEEDS, Algorithm, DataKind, Need
from posttrain.algorithms.declared import card, told_in
from posttrain.algorithms.metrics import RATIO_METRICS, clip_formulas
from posttrain.algorithms.off_policy.metrics import CORRECTION_METRICS
from posttrain.algorithms.off_policy.names import NAMED
from posttrain.algorithms.settings import attributes
from posttrain.config.algorithm import nearest_algorithm
from posttrain.errors import ConfigError
from posttrain.explain.correction import DECOUPLED, correction_settings

DATA: dict[DataKind, str] = {
    "prompts": "prompts and a reward; completions are sampled during training",
    "examples": "prompts with the completions to imitate; nothing is sampled",
    "pairs": "prompts with a chosen and a rejected answer; nothing is sampled",
    "labels": "prompts with one answer each, labelled desirable or undesirable; nothing is sampled",
    "ratings": "prompts with one answer each, rated by a number; nothing is sampled",
    "steps": "prompts with one answer each in steps, each labelled right or wrong; nothing is sampled",
}
OTHER_MODELS: dict[Need, str] = {
    "values": "critic, trained (its own model; a second adapter on the policy's base; or a head on the policy)",
    "reference": "reference, frozen (under LoRA the base model itself, no second copy)",
    "teacher": "teacher, frozen",
}
"""Need -> the model that it adds to the policy in memory, in display order."""
NUMBERS_TO_TRY = (0, 0.5, 2)
"""Values to try: off, one inside and one outside the unit interval. They show what a setting switches on."""
WIDTH = 100
SHOWN_SETTINGS = 6
"""Maximum number of settings in the summary."""
DECOUPLED_KEY = "decoupled_ppo"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One field of the algorithm's class."""

    name: str
    type: str
    default: Any
    doc: str
    source: str
    """Source of the default."""


@dataclass(frozen=True, kw_only=True)
class NeedFact:
    """A quantity that the trainer must compute for the algorithm."""

    name: Need
    meaning: str
    by_default: bool
    decided_by: tuple[str, ...]
    """Settings that switch it on (or off, if it is on by default). `a and b`: only both together do."""

    @property
    def when(self) -> str:
        settings = " or ".join(self.decided_by)
        if self.by_default:
            return f"by default; decided by {settings}" if settings else "always"
        return f"with {settings}"


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The facts about one algorithm; `render` is for a terminal, `to_markdown` for docs/, `to_json` for programs."""

    key: str
    config: str
    """The line of a config that selects the algorithm."""
    title: str
    paper: str
    summary: str
    formula: str
    settings: tuple[Setting, ...]
    data_kind: DataKind
    min_group_size: int
    """Minimum number of completions per prompt; meaningless if nothing is sampled."""
    needs: tuple[NeedFact, ...]
    models: tuple[str, ...]
    choices: dict[str, str]
    use_when: str
    avoid_when: str
    differs: tuple[str, ...]
    metrics: dict[str, str]
    options: dict[str, dict[str, str]] = field(default_factory=dict)
    """Choice -> name of an option -> its meaning; only if the choices are settings."""
    package: str = ""
    """Name and version of the package that publishes the algorithm; empty for built-in ones."""

    @property
    def data(self) -> list[str]:
        """The data that the algorithm learns from, in words."""
        group = [f"completions per prompt: at least {self.min_group_size}"] if self.data_kind == "prompts" else []
        return [DATA[self.data_kind], *group]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def render(self) -> str:
        settings = [
            f"{_wrapped(f'{s.name}: {s.type}, default {_value(s.default)}')}\n{_wrapped(s.doc, 4)}"
            + (f"\n{_wrapped(f'Source of the default: {s.source}', 4)}" if s.source else "")
            for s in self.settings
        ]
        sections = {
            "Formula": [self.formula],
            "Use it when": [_wrapped(self.use_when)],
            "Avoid it when": [_wrapped(self.avoid_when)],
            "Settings": settings or ["none of its own"],
            "Data": _listed(self.data),
            "Needs": _listed([f"{n.name} ({n.when}): {n.meaning}" for n in self.needs]) or ["nothing more"],
            "Models in memory": _listed(self.models),
            "Choices": _listed(_pairs(self.choices)),
            **{f"Options of {choice}": _listed(_pairs(options)) for choice, options in self.options.items()},
            "Differs from the paper and from other implementations": _listed(self.differs),
            "Metrics": _listed(_pairs(self.metrics)),
        }
        head = f"{self.title}  [{self.key}]\n{self.paper}\n\n{_wrapped(self.summary)}\n\n{self._in_short()}\n"
        bodies = (f"{name}\n" + textwrap.indent("\n".join(lines), "  ") for name, lines in sections.items() if lines)
        return head + "\n" + "\n\n".join(bodies) + "\n"

    def _in_short(self) -> str:
        """Return the summary: one line for each of the most common questions."""
        when: dict[str, str] = {
            n.name: f" ({' or '.join(n.decided_by)} decides)" if n.decided_by else "" for n in self.needs
        }
        others: list[Need] = [
            need for need, told in OTHER_MODELS.items() if any(model.startswith(told) for model in self.models)
        ]
        models = [
            self.models[0].partition(",")[0],
            *(OTHER_MODELS[need].partition(",")[0] + when[need] for need in others),
        ]
        shown = [f"{setting.name} {_value(setting.default)}" for setting in self.settings]
        if len(shown) > SHOWN_SETTINGS:
            shown[SHOWN_SETTINGS:] = [f"{len(shown) - SHOWN_SETTINGS} more"]
        lines = {
            **({"published by": self.package} if self.package else {}),
            "in a config": self.config,
            "learns from": "; ".join(one.partition(";")[0] for one in self.data),
            "computes": ", ".join(f"{need}{condition}" for need, condition in when.items()) or "nothing more",
            "in memory": ", ".join(models),
            "settings": ", ".join(shown) or "none of its own",
        }
        return "\n".join(_wrapped(f"{name:<13}{text}", 2, hanging=13) for name, text in lines.items())

    def to_markdown(self) -> str:
        settings = table(
            ("setting", "type", "default", "meaning", "source of the default"),
            [(f"`{s.name}`", s.type, f"`{_value(s.default)}`", s.doc, s.source) for s in self.settings],
        )
        needs = table(("need", "when", "meaning"), [(f"`{n.name}`", n.when, n.meaning) for n in self.needs])
        metrics = table(("metric", "formula"), [(f"`{name}`", formula) for name, formula in self.metrics.items()])
        parts = [
            "<!-- generated from the class: python -m posttrain.explain.page docs/algorithms -->",
            f"# {self.title}",
            f"`{self.config}` · {self.paper}" + (f" · published by {self.package}" if self.package else ""),
            self.summary,
            self.formula,
            f"**Use it when** {_as_clause(self.use_when)}",
            f"**Avoid it when** {_as_clause(self.avoid_when)}",
            "## Settings",
            settings if self.settings else "None of its own.",
            "## Data, needs and models",
            "Data:\n\n" + _bullets(self.data),
            needs if self.needs else "Needs only the policy's own log-probabilities.",
            "Models in memory:\n\n" + _bullets(self.models),
            "## Choices",
            table(("choice", "here"), list(self.choices.items())),
            *_option_tables(self.options),
            "## How it differs from the paper and from other implementations",
            _bullets(self.differs) if self.differs else "It does not.",
            "## Metrics",
            "In addition to the loss and the metrics of every run. A metric is logged if its inputs exist: clip "
            "metrics with a clip, `kl` with a reference.",
            metrics,
        ]
        return "\n\n".join(parts) + "\n"


def explain(name: str) -> Explanation:
    """Return the facts about an algorithm, given by its key, class name, title or file name.

    >>> explain("Dr. GRPO").key, explain("algorithms/dr_grpo.py").key, explain("REINFORCE Leave-One-Out").key
    ('dr_grpo', 'dr_grpo', 'rloo')
    """
    if (key := find(name)) == DECOUPLED_KEY:
        return decoupled_ppo()
    return explain_class(ALGORITHMS[key])


def explain_class(cls: type[Algorithm]) -> Explanation:
    """Return the facts about an algorithm class, whether or not it is registered under a key."""
    card, key = cls.card, cls.key
    return Explanation(
        key=cls.key,
        config=f"algorithm: {cls.key}",
        title=card.title,
        paper=card.paper,
        summary=card.summary,
        formula=_formula(cls),
        settings=tuple(_settings(cls)),
        data_kind=cls.data_kind,
        min_group_size=cls.min_group_size,
        needs=(needs := tuple(_needs(cls))),
        models=tuple(_models(cls, needs)),
        choices=card.choices,
        use_when=card.use_when,
        avoid_when=card.avoid_when,
        differs=card.differs,
        metrics=card.metrics | cls.shared_metrics,
        options=options_of_choices() if cls.open_composition else {},
        package=ALGORITHMS.published[key].package if key in ALGORITHMS.published else "",
    )


def options_of_choices() -> dict[str, dict[str, str]]:
    """Return choice of `policy_gradient` -> option -> what the option computes."""
    return {choice: options for choice, options in told_in("options").items() if choice != "correction"}


def decoupled_ppo() -> Explanation:
    """Return the facts about decoupled PPO. It is a correction for any algorithm, shown like an algorithm because
    people search for it by name."""
    correction, metrics = NAMED["decoupled"], clip_formulas() | RATIO_METRICS | CORRECTION_METRICS
    told = card(DECOUPLED_KEY, metrics)
    settings = tuple(
        Setting(name=name, type=kind, default=getattr(correction, name), doc=doc, source=told.sources[name])
        for name, kind, doc in correction_settings()
    )
    needs = tuple(need for need in _needs(ALGORITHMS["grpo"]) if need.name == "old")
    return Explanation(
        key=DECOUPLED_KEY,
        config="algorithm: {name: grpo, correction: decoupled}",
        title=told.title,
        paper=told.paper,
        summary=told.summary,
        formula=DECOUPLED,
        settings=settings,
        data_kind="prompts",
        min_group_size=1,
        needs=needs,
        models=("policy, trained", "the models that its algorithm needs"),
        choices=told.choices,
        use_when=told.use_when,
        avoid_when=told.avoid_when,
        differs=told.differs,
        metrics=told.metrics,
    )


def find(name: str) -> str:
    """Return the key of the algorithm that `name` means."""
    if name in ALGORITHMS:
        return name
    known = {_plain(alias): key for key, cls in ALGORITHMS.that_load() for alias in _aliases(key, cls)}
    known |= {_plain(alias): DECOUPLED_KEY for alias in (DECOUPLED_KEY, "decoupled", "AReaL")}
    path = PurePath(name)
    wanted = _plain(path.stem if path.suffix in (".py", ".md") else name)
    if wanted in known:
        return known[wanted]
    allowed, fix = nearest_algorithm(name, known, spelt=wanted)
    raise ConfigError(given=f"there is no algorithm {name!r}", allowed=allowed, fix=fix)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9+]", "", name.lower())


def _aliases(key: str, cls: type[Algorithm]) -> list[str]:
    return [key, cls.__name__, cls.card.title, *cls.card.title.split(":")]


def _formula(cls: type[Algorithm]) -> str:
    """Return the docstring of the class, or of its file if the class has only one line, without the title line."""
    own = cls.__doc__ or ""
    written = own if "\n" in own else sys.modules[cls.__module__].__doc__ or ""
    return inspect.cleandoc(written).partition("\n")[2].strip("\n")


@functools.cache
def _schema(cls: type[Algorithm]) -> dict[str, dict[str, Any]]:
    """Return setting -> JSON schema, the algorithm's own settings first, the inherited ones last."""
    schema = TypeAdapter(cls).json_schema()
    records = {f"#/$defs/{name}": list(record["properties"]) for name, record in schema.get("$defs", {}).items()}
    properties = {name: _with_records(node, records) for name, node in schema["properties"].items()}
    return dict(sorted(properties.items(), key=lambda item: _is_inherited(cls, item[0])))


def _with_records(schema: dict[str, Any], records: dict[str, list[str]]) -> dict[str, Any]:
    """Return the schema with its alternatives under `anyOf`, and references replaced by the settings of a record."""
    if options := schema.get("oneOf") or schema.get("anyOf"):
        return schema | {"anyOf": [_with_records(option, records) for option in options]}
    return {"type": "record", "settings": records[schema["$ref"]]} if "$ref" in schema else schema


def _is_inherited(cls: type[Algorithm], name: str) -> bool:
    return attributes(cls).get(name, name) not in cls.__annotations__


def _settings(cls: type[Algorithm]) -> Iterator[Setting]:
    sources = cls.shared_sources | cls.card.sources
    for name, schema in _schema(cls).items():
        yield Setting(
            name=name,
            type=_type_name(cls, name, schema),
            default=schema.get("default"),
            doc=_doc(cls, name),
            source=sources.get(name, ""),
        )


def _doc(cls: type[Algorithm], name: str) -> str:
    """Return the string under the field. pydantic keeps it only on the class that declares the field."""
    attribute = attributes(cls)[name]
    owners = (parent for parent in cls.__mro__ if attribute in getattr(parent, "__annotations__", {}))
    fields: dict[str, Any] = next(owners).__pydantic_fields__  # type: ignore[attr-defined]
    return " ".join((fields[attribute].description or "").split())


def _type_name(cls: type[Algorithm], name: str, schema: dict[str, Any]) -> str:
    """Return a JSON schema in words, such as `number >= 0, or none`."""
    if "anyOf" in schema:
        return ", or ".join(_type_name(cls, name, option) for option in schema["anyOf"])
    if "enum" in schema:
        return "one of " + ", ".join(str(option) for option in schema["enum"] if _accepts(cls, {name: option}))
    if "const" in schema:
        return str(schema["const"])
    if schema["type"] == "record":
        return f"settings ({', '.join(schema['settings'])})"
    kind: str = {"null": "none", "boolean": "true or false"}.get(schema["type"]) or schema["type"]
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    bounds = " and ".join(f"{sign} {schema[bound]}" for bound, sign in signs.items() if bound in schema)
    return f"{kind} {bounds}" if bounds else kind


def _accepts(cls: type[Algorithm], given: dict[str, Any]) -> bool:
    return cls.open_composition or _built(cls, given) is not None


def _built(cls: type[Algorithm], given: dict[str, Any]) -> Algorithm | None:
    try:
        return cls(**given)
    except ConfigError:
        return None


def _needs(cls: type[Algorithm]) -> Iterator[NeedFact]:
    """Yield each need of the default settings, or of settings that differ from them in one place."""
    default = cls().needs
    changed = [(names, variant.needs) for names, variant in _variants(cls)]
    for need, meaning in NEEDS.items():
        decided_by = tuple(dict.fromkeys(names for names, needs in changed if (need in needs) != (need in default)))
        if need in default or decided_by:
            yield NeedFact(name=need, meaning=meaning, by_default=need in default, decided_by=decided_by)


def _variants(cls: type[Algorithm]) -> Iterator[tuple[str, Algorithm]]:
    """Yield the algorithm with one setting changed, or two if the class refuses each alone, such as half a clip."""
    values = values_to_try(cls)
    refused_alone = []
    for name, tried in values.items():
        built = [algorithm for value in tried if (algorithm := _built(cls, {name: value}))]
        yield from ((name, algorithm) for algorithm in built)
        if not built:
            refused_alone.append(name)
    for a, b in itertools.combinations(refused_alone, 2):
        for pair in itertools.product(values[a], values[b]):
            if algorithm := _built(cls, dict(zip((a, b), pair, strict=True))):
                yield f"{a} and {b}", algorithm


def values_to_try(cls: type[Algorithm]) -> dict[str, list[Any]]:
    """Return setting -> values other than its default, enough to see what the setting switches."""
    return {name: _values_to_try(schema) for name, schema in _schema(cls).items()}


def _values_to_try(schema: dict[str, Any]) -> list[Any]:
    options = schema.get("anyOf", [schema])
    values: list[Any] = []
    for option in options:
        by_type = {"boolean": (True, False), "number": NUMBERS_TO_TRY, "integer": NUMBERS_TO_TRY, "null": (None,)}
        named = [option["const"]] if "const" in option else option.get("enum")
        values += named if named is not None else by_type.get(option["type"], ())
    return [value for value in values if value != schema.get("default")]


def _models(cls: type[Algorithm], needs: tuple[NeedFact, ...]) -> Iterator[str]:
    yield "policy, trained" if all(need.name != "scores" for need in needs) else "model with a scalar head, trained"
    when = {need.name: need.when for need in needs}
    for need, model in OTHER_MODELS.items():
        if need == "reference" and need in when and cls.data_kind != "prompts":
            yield "no reference: its log-probabilities are computed before the first step and kept on disk"
        elif need in when:
            yield f"{model}: {when[need]}"
    if cls.data_kind == "prompts":
        yield "reward model: only if the reward is one"


def _value(value: Any) -> str:
    if isinstance(value, str) and not value.strip():
        return repr(value)  # a line break would be invisible on a page
    return "none" if value is None else str(value)


def _as_clause(sentence: str) -> str:
    """Return the sentence with a small first letter, for use after `Use it when`. A name in capitals keeps them."""
    return sentence if sentence[1].isupper() else sentence[0].lower() + sentence[1:]


def _wrapped(text: str, indent: int = 0, hanging: int = 0) -> str:
    first, others = " " * indent, " " * (indent + hanging)
    return textwrap.fill(text, WIDTH - 2, initial_indent=first, subsequent_indent=others)


def _listed(lines: Sequence[str]) -> list[str]:
    return [textwrap.fill(line, WIDTH - 2, initial_indent="- ", subsequent_indent="  ") for line in lines]


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _pairs(told: dict[str, str]) -> list[str]:
    return [f"{name}: {about}" for name, about in told.items()]


def _option_tables(options: dict[str, dict[str, str]]) -> Iterator[str]:
    for choice, abouts in options.items():
        yield table((choice, "what it is"), [(f"`{name}`", about) for name, about in abouts.items()])


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    cells = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells)
