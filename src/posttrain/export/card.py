"""README.md of an exported model, as the Hub wants it: what it is, how it was trained and measured, how to load it."""

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
from posttrain.export.lineage import Trained, first_model, lineage
from posttrain.export.origin import Head, Origin
from posttrain.export.plots import write_plots
from posttrain.export.redact import is_path, shown, shown_text
from posttrain.export.results import results
from posttrain.export.writing import Written
from posttrain.report.store import RunRecord, read_run

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
    """Write `README.md`, and the pictures that it shows."""
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
    """The metadata that the Hub reads: only what names something on the Hub is named."""
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
    """Each run behind the model, in their order."""
    lines = [
        f"{number}. **{_card(trained).title}**, {trained.step} steps on {_named(trained.data)}"
        for number, trained in enumerate(behind, 1)
    ]
    return "## Stages\n\n" + "\n".join(lines) + "\n\nWhat follows is about the last of them."


def _named(data: Sequence[str]) -> str:
    return ", ".join(f"`{shown_text(name)}`" for name in data)


def _of_run(run: RunRecord, origin: Origin, trained: Trained, folder: Path) -> Iterator[str]:
    """What was trained on what, and what came of it."""
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
    """What the entry of the config names: a built-in, a function, a model."""
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
    """What ends an answer beside EOS, and what whoever samples has to do for it; empty without stop strings."""
    if not written.stop_strings:
        return ""
    named = ", ".join(f"`{json.dumps(text, ensure_ascii=False)}`" for text in written.stop_strings)
    use = (
        "the GGUF file has no place for them, so name them to whatever samples: "
        "`model.generate(..., stop_strings=[...], tokenizer=tokenizer)` in transformers."
        if written.file
        else "`generate` needs `tokenizer=tokenizer` for them, without which it raises a ValueError, and leaves the "
        "text that ended an answer at its end."
    )
    return f"\n\nAnswers also end at these texts: {named}. They are `stop_strings` in `generation_config.json`; {use}"


def _checked(replay: Replay) -> str:
    ties = "".join(f"\n- a tie that rounding has turned: {tie}" for tie in replay.ties)
    return (
        f"{replay.prompts} prompts ({shown_text(replay.source)}) were replayed through this export by plain "
        "transformers, in a process of its own, and compared with the trained model: "
        f"{', '.join(replay.facts())}.{ties}"
    )


def _configuration(run: RunRecord) -> str:
    """Every setting; whoever reads it learns nothing of the machine."""
    text = yaml.safe_dump(shown(run.config), sort_keys=False, allow_unicode=True)
    return f"<details><summary>Configuration, with all defaults</summary>\n\n```yaml\n{text}```\n\n</details>"
