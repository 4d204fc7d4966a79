"""The model card (README.md) of an export, in the Hub's format: model, training, measurements and how to load it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from posttrain.algorithms import ALGORITHMS
from posttrain.algorithms.declared import Card
from posttrain.config import DataConfig
from posttrain.export.compare import Replay
from posttrain.export.origin import Head, Origin, Trained, first_model, lineage
from posttrain.export.redact import is_path, shown, shown_text
from posttrain.export.target import Written
from posttrain.report.chart import Chart
from posttrain.report.charts import learning_charts
from posttrain.report.store import RunRecord, mapping, read_run
from posttrain.report.svg import HEIGHT, WIDTH, compact
from posttrain.report.text import escaped
from posttrain.report.verdict import Span, span, verdict

_TASKS: Mapping[Head, str] = {
    "tokens": "text-generation",
    "score": "text-classification",
    "steps": "token-classification",
}
_CLASSES: Mapping[Head, str] = {
    "tokens": "AutoModelForCausalLM",
    "score": "AutoModelForSequenceClassification",
    "steps": "AutoModelForTokenClassification",
}


def write_card(folder: Path, origin: Origin, written: Written, replay: Replay, *, to: str) -> None:
    """Write `README.md` and its pictures."""
    run = read_run(origin.run) if origin.run is not None else None
    behind = lineage(origin)
    parts = [
        f"---\n{yaml.safe_dump(front_matter(origin, behind, to), sort_keys=False, allow_unicode=True)}---",
        f"# {origin.name}",
        _first_sentence(origin, behind, written),
        *([_stages(behind)] if len(behind) > 1 else ()),
        *(_of_run(run, origin, behind[-1], folder) if run is not None else ()),
        "## How to load\n\n" + _loading(origin, written) + _stopping(written),
        "## Checked\n\n" + _checked(replay),
        *([_configuration(run)] if run is not None else ()),
    ]
    (folder / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def front_matter(origin: Origin, behind: Sequence[Trained], to: str) -> dict[str, Any]:
    """Return the metadata that the Hub reads. Models and datasets are listed only if they are on the Hub."""
    base = first_model(origin, behind)
    algorithms = dict.fromkeys(trained.config.algorithm.name for trained in behind)
    found: dict[str, Any] = {"library_name": "gguf" if to == "gguf" else "transformers"}
    found |= {"pipeline_tag": _TASKS[origin.head], "tags": ["posttrain", *algorithms, *(["gguf"] * (to == "gguf"))]}
    if _on_hub(base):
        found["base_model"] = base
    if names := [name for name in dict.fromkeys(name for trained in behind for name in trained.data) if _on_hub(name)]:
        found["datasets"] = names
    return found


def _on_hub(name: str) -> bool:
    return "/" in name and "://" not in name and not is_path(name)


def _first_sentence(origin: Origin, behind: Sequence[Trained], written: Written) -> str:
    size = f"{written.parameters:,} parameters, {written.dtype}."
    base = f"`{shown_text(first_model(origin, behind))}`"
    if not behind:
        return f"{base}, {size}" + (" LoRA adapters are merged." if origin.adapter else "")
    stages = " and ".join(f"{trained.step} steps of {_card(trained).title}" for trained in behind)
    merged = "; LoRA adapters are merged" if any(trained.config.lora is not None for trained in behind) else ""
    return f"{base} after {stages}{merged}. {size}"


def _card(trained: Trained) -> Card:
    return ALGORITHMS[trained.config.algorithm.name].card


def _stages(behind: Sequence[Trained]) -> str:
    """Return the section about the runs that led to the model, in order."""
    lines = [
        f"{number}. **{_card(trained).title}**, {trained.step} steps on {_named(trained.data)}"
        for number, trained in enumerate(behind, 1)
    ]
    return "## Stages\n\n" + "\n".join(lines) + "\n\nThe rest of this card is about the last stage."


def _named(data: Sequence[str]) -> str:
    return ", ".join(f"`{shown_text(name)}`" for name in data)


def _of_run(run: RunRecord, origin: Origin, trained: Trained, folder: Path) -> Iterator[str]:
    """Yield the sections about a run: training, data, results and curves."""
    config, card = trained.config, _card(trained)
    lines = [f"**{card.title}** ({_paper(card.paper)}): {card.summary}"]
    if config.algorithm.settings:
        named = ", ".join(f"`{name}` = {shown(value, name)}" for name, value in config.algorithm.settings.items())
        lines.append(f"Settings: {named}.")
    yield "## Training\n\n" + "\n\n".join(lines)
    data = [f"- trained on {_named(trained.data)}", f"- held out: {_heldout(config.data)}"]
    if rewards := [_reward(entry) for entry in run.config.get("rewards") or []]:
        data.append(f"- rewards: {', '.join(rewards)}")
    yield "## Data\n\n" + "\n".join(data)
    yield "## Results\n\n" + results(run, origin.step)
    if plots := write_plots(run, folder):
        yield "## Curves\n\n" + "\n\n".join(f"![{title}]({name})" for name, title in plots)


def _paper(paper: str) -> str:
    """
    >>> _paper("arXiv:2402.03300")
    '[arXiv:2402.03300](https://arxiv.org/abs/2402.03300)'
    """
    number = paper.partition("arXiv:")[2].split()[0].rstrip(",;)") if "arXiv:" in paper else ""
    return paper.replace(f"arXiv:{number}", f"[arXiv:{number}](https://arxiv.org/abs/{number})") if number else paper


def _heldout(data: DataConfig) -> str:
    if data.eval is not None:
        return _named([data.eval] if isinstance(data.eval, str) else data.eval)
    if str(data.train).startswith("task:"):
        return "other problems of the same task"
    return f"{data.eval_fraction:.0%} of the rows, which training did not see" if data.eval_fraction else "nothing"


def _reward(entry: Any) -> str:
    """Return the name of a reward in the config: a built-in, a function or a model."""
    entry = entry if isinstance(entry, Mapping) else {"name": entry}
    for key in ("label", "name", "function", "model"):
        if isinstance(entry.get(key), str):
            return f"`{shown_text(entry[key])}`"
    return ", ".join(f"`{key}`" for key, value in entry.items() if isinstance(value, Mapping)) or "a reward"


def _loading(origin: Origin, written: Written) -> str:
    if written.file is not None:
        return (
            f"```sh\nllama-cli -m {written.file}\n```\n\nor, dequantised, in transformers:\n\n```python\n"
            "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            f'model = AutoModelForCausalLM.from_pretrained(folder, gguf_file="{written.file}")\n'
            f'tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file="{written.file}")\n```'
        )
    name = _CLASSES[origin.head]
    tokenizer = ", tokenizer=tokenizer" if written.stop_strings else ""
    use = {
        "tokens": f"output = model.generate(**inputs, do_sample=False, max_new_tokens=256{tokenizer})\n"
        'print(tokenizer.decode(output[0, inputs["input_ids"].shape[1]:], skip_special_tokens=True))',
        "score": "print(model(**inputs).logits[0, 0])  # the score of the whole text",
        "steps": "print(model(**inputs).logits[0, :, 0])  # read it at the last token of each step",
    }[origin.head]
    return (
        f"```python\nfrom transformers import {name}, AutoTokenizer\n\n"
        f"model = {name}.from_pretrained(folder)\ntokenizer = AutoTokenizer.from_pretrained(folder)\n"
        f'inputs = tokenizer("...", return_tensors="pt")\n{use}\n```'
    )


def _stopping(written: Written) -> str:
    """Explain the stop strings and how to use them when sampling; empty if there are none."""
    if not written.stop_strings:
        return ""
    named = ", ".join(f"`{json.dumps(text, ensure_ascii=False)}`" for text in written.stop_strings)
    use = (
        "a GGUF file cannot hold them, so give them to the program that samples, in transformers by "
        "`model.generate(..., stop_strings=[...], tokenizer=tokenizer)`."
        if written.file
        else "`generate` needs `tokenizer=tokenizer` for them, or it raises a ValueError. It keeps the stop string at "
        "the end of the answer."
    )
    return f"\n\nAnswers also end at these texts: {named}. They are `stop_strings` in `generation_config.json`; {use}"


def _checked(replay: Replay) -> str:
    ties = "".join(f"\n- a tie that rounding decided differently: {tie}" for tie in replay.ties)
    return (
        f"{replay.prompts} prompts ({shown_text(replay.source)}) were replayed through this export by plain "
        "transformers, in a separate process, and compared with the trained model: "
        f"{', '.join(replay.facts())}.{ties}"
    )


def _configuration(run: RunRecord) -> str:
    """Return every setting, without paths, addresses and secrets of the machine."""
    text = yaml.safe_dump(shown(run.config), sort_keys=False, allow_unicode=True)
    return f"<details><summary>Configuration, with all defaults</summary>\n\n```yaml\n{text}```\n\n</details>"


# --- results ---------------------------------------------------------------------------------------------------------


def results(run: RunRecord, step: int | None) -> str:
    """Return the verdict in words, and a table of all intervals before and after training."""
    sides = [dict(_intervals(run.evaluation.get(side))) for side in ("baseline", "trained")]
    names = list(dict.fromkeys(name for side in sides for name in side))
    if not names:
        return "No data was held out, so the effect of training was not measured."
    found = verdict(run)
    rows = [
        f"| {name} | {_shown(sides[0].get(name))} | {_shown(sides[1].get(name))} | {_count(sides, name)} |"
        for name in names
    ]
    table = ["| held out | baseline | trained | n |", "|---|---|---|---|", *rows]
    last = max((row["step"] for row in run.metrics), default=step)
    about = f"\n\nMeasured after step {last}; this export is of step {step}." if sides[1] and step != last else ""
    return f"**{found.headline}** {' '.join(found.sentences)}\n\n" + "\n".join(table) + about


def _intervals(value: Any, name: str = "") -> Iterator[tuple[str, Span]]:
    """Yield (name, interval) for every entry with an interval, in the order of the file."""
    found = span(value)
    if found is not None and "low" in mapping(value):
        yield name or "result", found
        return
    for key, inner in mapping(value).items():
        yield from _intervals(inner, f"{name} {key}".strip())


def _shown(found: Span | None) -> str:
    if found is None:
        return ""
    between = f"{compact(found.low)} to {compact(found.high)}" if found.finite else "no interval"
    return f"{compact(found.mean)} ({between})"


def _count(sides: Sequence[Mapping[str, Span]], name: str) -> str:
    return str(next(side[name].n for side in reversed(sides) if name in side))


# --- curves ----------------------------------------------------------------------------------------------------------


MOST = 6
"""Maximum number of pictures in a card; the report of the run has all of them."""
_HEAD = 48
_COLOURS = ("#1f5fa8", "#c2651a", "#2f8a5b", "#7d55a6", "#b4467a", "#9aa1ab")
_STYLE = (
    "text { font: 11.5px ui-sans-serif, system-ui, sans-serif; fill: #6b7280 } "
    ".head { font-size: 15px; font-weight: 600; fill: #1c1e22 } .grid { stroke: #e3e3e0 } "
    ".line { fill: none; stroke-width: 2; stroke-linejoin: round } .whisker { fill: none; stroke-width: 1.6 } "
    + " ".join(
        f".line.s{i}, .whisker.s{i} {{ stroke: {c} }} .dot.s{i}, .key.s{i} {{ fill: {c} }} "
        f".band.s{i}, .area.s{i} {{ fill: {c}; fill-opacity: .2; stroke: none }}"
        for i, c in enumerate(_COLOURS, start=1)
    )
    + " .whisker { stroke: #c2651a } .paper { fill: #ffffff }"
)


def write_plots(run: RunRecord, folder: Path) -> list[tuple[str, str]]:
    """Write the run's first curves that are not constant into `folder/plots`, and return (file, title) of each."""
    charts = [chart for chart in learning_charts(run) if not chart.flat][:MOST]
    if charts:
        (folder / "plots").mkdir()
    written = []
    for chart in charts:
        name = f"plots/{chart.key}.svg"
        (folder / name).write_text(picture(chart), encoding="utf-8")
        written.append((name, chart.title))
    return written


def picture(chart: Chart) -> str:
    """Return the chart as an SVG file with title, legend and colours, on a white background."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + _HEAD}" width="{WIDTH}" '
        f'height="{HEIGHT + _HEAD}"><style>{_STYLE}</style><rect class="paper" width="100%" height="100%"/>'
        f'<text class="head" x="52" y="20">{escaped(chart.title)}</text>{"".join(_legend(chart))}'
        f'<g transform="translate(0 {_HEAD})">{chart.svg}</g></svg>\n'
    )


def _legend(chart: Chart) -> Iterator[str]:
    room = (WIDTH - 52) // max(1, len(chart.legend))
    for place, (colour, name, value) in enumerate(chart.legend):
        left = 52 + room * place
        yield f'<rect class="key s{colour}" x="{left}" y="32" width="14" height="4" rx="2"/>'
        yield f'<text x="{left + 20}" y="38">{escaped(name)}: {escaped(value)}</text>'
