"""Writes the reference page from the models: `python -m posttrain.config.page > docs/config.md`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence

from posttrain.config import PRESETS, describe_fields
from posttrain.config import presets as config_presets
from posttrain.config.load import RULES
from posttrain.config.schema import FieldDoc
from posttrain.config.text import dotted, leaves, show

_HEAD = """\
# Configuration

This page is written from `src/posttrain/config/` by `python -m posttrain.config.page`; a test compares the two.

A run is one YAML or TOML file. Four things have no default: the model, the algorithm, the data and the number of steps.

```yaml
model: Qwen/Qwen3-0.6B
algorithm: {name: grpo, clip_high: 0.28}
data: {train: gsm8k_train.jsonl, eval: gsm8k_test.jsonl}
rewards: [{name: math}, {function: my_rewards.py:brevity, weight: 0.1}]
sampling: {group_size: 8, max_completion_length: 512}
train: {steps: 200, prompts_per_step: 32, learning_rate: 1e-6}
```

## Where a value comes from

default < preset < file < command line. Mappings are merged key by key; lists and single values replace the old value.
`posttrain train run.yaml train.learning_rate=2e-6 rewards.0.weight=0.5` changes two values for one run: each override
is `section.key=value`, the value is read as YAML, `-` may stand for `_` in keys, and list entries are numbered
from 0. A bare string stands for the main key of its section: `model: x` is `model: {path: x}`, and `algorithm: grpo` is
`algorithm: {name: grpo}`; in `rewards` and `check`, `math` is `{name: math}`, and `my_rewards.py:score`, because of
its dot, is `{function: my_rewards.py:score}`. The run folder keeps `config.yaml` with every value and its origin; you
can train from it again without changes. Relative paths start at the working directory.

YAML is read by the rules of YAML 1.2: `1e-6` is a number, `true` and `false` are the only truth values, and `yes`,
`on`, `0123` and `2026-01-01` are text. A key that is written twice and a key that does not exist are errors.
Do not put secrets into a configuration: let your code read them from environment variables. A value in `settings` or
`chat_template_kwargs` that looks like a secret is saved as `<redacted>`.

An editor completes and checks the settings of a run with their JSON schema. Write it to a file,

```sh
python -c 'import json; from posttrain.config import json_schema; print(json.dumps(json_schema()))' > run.schema.json
```

and begin the configuration with `# yaml-language-server: $schema=run.schema.json`.

## Settings

Write the settings of an algorithm next to its name; `posttrain explain NAME` lists them. N is a position in a list."""


def config_page() -> str:
    """Return the whole page as Markdown."""
    parts = [_HEAD, *_sections(describe_fields()), "## Presets", _presets(), "## Rules that span sections", _rules()]
    parts += ["## Names in other libraries", _FOREIGN]
    return "\n\n".join(parts) + "\n"


def _sections(fields: Iterable[FieldDoc]) -> list[str]:
    sections: dict[str, list[FieldDoc]] = {}
    for doc in fields:
        sections.setdefault(doc.path.partition(".")[0] if "." in doc.path else "Top level", []).append(doc)
    return [f"### {name}\n\n{_settings(docs)}" for name, docs in sections.items()]


def _settings(docs: Sequence[FieldDoc]) -> str:
    rows = [(f"`{d.path}`", d.type, "required" if d.required else f"`{show(d.default)}`", d.doc) for d in docs]
    return _table(("setting", "allowed", "default", "meaning"), rows)


def _presets() -> str:
    head = "`preset: NAME` gives other defaults. The meaning of a name never changes; a better preset gets a new name."
    head += "\n\n" + inspect.cleandoc(config_presets.__doc__ or "").partition("\n\n")[2]
    values = {
        name: ", ".join(f"`{dotted(p)}={show(v)}`" for p, v in leaves(dict(preset))) for name, preset in PRESETS.items()
    }
    return f"{head}\n\n{_table(('preset', 'values'), [(f'`{name}`', text) for name, text in values.items()])}"


def _rules() -> str:
    return "All are checked before a model is loaded.\n\n" + "\n".join(f"- {rule.__doc__}" for rule in RULES)


_FOREIGN = (
    "An unknown key in a file or an override is an error that names our key, even for a key of TRL, verl, "
    "OpenRLHF or AReaL. [Moving here](moving/index.md) lists all of them."
)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    print(config_page(), end="")
