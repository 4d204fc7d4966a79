"""The source of an export: the checkpoint of a run, a model folder, or LoRA adapters on their base."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from peft import PeftModel
from torch import nn

from posttrain.config import ModelConfig, RunConfig, load_config
from posttrain.errors import CheckpointError, ConfigError, ModelError
from posttrain.evaluate.trained import run_in, trained_model
from posttrain.files import is_inside
from posttrain.models.load import LoadedModel, load_model
from posttrain.models.modes import without_progress_bars
from posttrain.models.named import resolve_model_path
from posttrain.models.reward_head import load_reward_model, load_step_model
from posttrain.shown import shown
from posttrain.store.checkpoint import Checkpoint, require_intact, verify

Head = Literal["tokens", "score", "steps"]
"""The kind of output of a model: next token, a score of the whole row, or a score of each step."""

_HEADS: Mapping[str, Head] = {"ForSequenceClassification": "score", "ForTokenClassification": "steps"}
ADAPTER = "adapter_config.json"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The model to export, and the run that trained it, if any."""

    name: str
    """Name of the exported model."""
    model: ModelConfig
    head: Head
    adapter: Path | None = None
    """Folder of LoRA adapters to merge into `model`."""
    run: Path | None = None
    config: RunConfig | None = None
    """Config of the run."""
    step: int | None = None
    """Step of the run's checkpoint."""


def find_origin(source: str | PathLike[str], *, step: int | None = None, base: str | None = None) -> Origin:
    """Find the model of a source. A run folder gives its newest checkpoint, or the checkpoint of `step`.

    A folder of adapters gives its base model. Raises ConfigError for arguments that do not fit the source, and
    ModelError or CheckpointError for a broken source.
    """
    source = os.fspath(source)
    folder = Path(source)
    run = run_in(folder)
    if step is not None and run is None:
        raise ConfigError(given=f"step = {step}, but {source} is not a run", allowed="a run folder", fix="Remove it.")
    if base is not None and not (folder / ADAPTER).is_file():
        raise ConfigError(
            given=f"base = {base!r}, but {source} holds no {ADAPTER}",
            allowed="a folder of LoRA adapters as peft writes it",
            fix="Remove it.",
        )
    if run is not None:
        return _of_run(run, step)
    require_intact(folder)
    if (folder / ADAPTER).is_file():
        return _of_adapters(folder, base)
    if folder.suffix == ".gguf" and folder.is_file():
        model = ModelConfig(path=str(folder.parent), gguf_file=folder.name)
        return Origin(name=folder.stem, model=model, head="tokens")
    model = resolve_model_path(ModelConfig(path=source), 0)
    return Origin(name=_name(source), model=model, head=_head(Path(model.path)))


def _of_run(run: Path, step: int | None) -> Origin:
    config = load_config(run / "config.yaml").config
    folder = Path(trained_model(run, config).path) if step is None else _checkpoint(run, step).model
    model = ModelConfig(
        path=str(folder),
        trust_remote_code=config.model.trust_remote_code,
        attention=config.model.attention,
        chat_template_kwargs=config.model.chat_template_kwargs,
    )
    number = int(folder.parent.name.removeprefix("step-"))
    return Origin(name=run.resolve().name, model=model, head=_head(folder), run=run, config=config, step=number)


def _checkpoint(run: Path, step: int) -> Checkpoint:
    path = run / "checkpoints" / f"step-{step:06d}"
    if not path.is_dir():
        there = sorted(int(found.name[5:]) for found in path.parent.glob("step-*") if found.name[5:].isdigit())
        raise ConfigError(
            given=f"step = {step}: the run {run} has no such checkpoint",
            allowed=", ".join(map(str, there)) or "a run that has saved one",
            fix=f"Leave it out for step {there[-1]}." if there else f"`posttrain resume {shown(run)}` continues it.",
        )
    found = verify(path)
    if isinstance(found, Checkpoint):
        return found
    raise CheckpointError(
        given="; ".join(map(str, found)),
        allowed="a checkpoint whose files are exactly as they were written",
        fix="Restore the named files, or give the step of another checkpoint.",
    )


def _of_adapters(folder: Path, base: str | None) -> Origin:
    named = base or _adapter_config(folder).get("base_model_name_or_path")
    if not named:
        raise ModelError(
            given=f"{folder / ADAPTER} does not name its base model",
            allowed="the folder or the name of the model that the adapters were trained on",
            fix="Give it: --base MODEL.",
        )
    model = resolve_model_path(ModelConfig(path=str(named)), 0)
    return Origin(name=_name(str(folder)), model=model, head=_head(Path(model.path)), adapter=folder)


def _adapter_config(folder: Path) -> Mapping[str, Any]:
    try:
        return json.loads((folder / ADAPTER).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            given=f"{folder / ADAPTER} cannot be read: {error}",
            allowed="the file that peft writes",
            fix="Copy the folder again.",
        ) from error


def _head(folder: Path) -> Head:
    try:
        declared = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("architectures") or []
    except (OSError, ValueError, AttributeError):  # loading the model will report errors
        return "tokens"
    for suffix, head in _HEADS.items():
        if any(str(name).endswith(suffix) for name in declared):
            return head
    return "tokens"


def _name(source: str) -> str:
    """
    >>> _name("Qwen/Qwen3-0.6B"), _name("tiny:sort"), _name("runs/a/checkpoints/step-000002/model")
    ('Qwen3-0.6B', 'tiny-sort', 'a-step-000002')
    """
    path = Path(source)
    *_, run, _, step, last = ("", "", "", *path.parts)
    return f"{run}-{step}" if last == "model" and step.startswith("step-") else last.replace(":", "-") or "model"


def load(origin: Origin, device: str) -> LoadedModel:
    """Load the trained model in float32. Adapters stay separate from their base, unmerged.

    Its generation config has the stop strings of the run; for a model without a run, its own. Raises what `load_model`
    raises, and ModelError for adapters that do not fit.
    """
    config = origin.model.model_copy(update={"precision": "float32"})
    if origin.head == "score":
        loaded = load_reward_model(config, trained=True, device=device)
    elif origin.head == "steps":
        loaded = load_step_model(config, trained=True, device=device)
    else:
        loaded = load_model(config, device=device)
        _set_stop_strings(loaded, origin)
    if origin.adapter is None:
        return loaded
    return replace(loaded, model=_with_adapters(loaded.model, origin))  # type: ignore[arg-type]


def _set_stop_strings(loaded: LoadedModel, origin: Origin) -> None:
    """Set the stop strings: a list, or None. A run ignores the stop strings of its initial model: they are dropped."""
    settings: Any = loaded.model.generation_config
    own = settings.stop_strings or []
    found = [own] if isinstance(own, str) else list(own)
    settings.stop_strings = (found if origin.config is None else list(origin.config.sampling.stop)) or None


def _with_adapters(model: nn.Module, origin: Origin) -> PeftModel:
    try:
        with without_progress_bars():
            adapted = PeftModel.from_pretrained(model, str(origin.adapter))  # type: ignore[arg-type]
    except (ValueError, RuntimeError, OSError, KeyError, TypeError) as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ModelError(
            given=f"the adapters in {origin.adapter} do not fit {origin.model.path}: {reason}",
            allowed="adapters for exactly this model",
            fix="Give the model that they were trained on: --base MODEL.",
        ) from error
    return adapted.eval()


# --- the runs behind a model -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One run, up to the checkpoint that the next run or the export used."""

    run: Path
    config: RunConfig
    step: int

    @property
    def data(self) -> list[str]:
        train = self.config.data.train
        return [train] if isinstance(train, str) else list(train)


def lineage(origin: Origin) -> list[Trained]:
    """Return the runs that led to the model, first to last; empty for a model without a run."""
    if origin.run is None or origin.config is None or origin.step is None:
        return []
    found = [Trained(run=origin.run, config=origin.config, step=origin.step)]
    while (before := _before(found[0])) is not None and before.run not in [known.run for known in found]:
        found.insert(0, before)
    return found


def first_model(origin: Origin, runs: Sequence[Trained]) -> str:
    """Return the model that the first run started from."""
    return runs[0].config.model.path if runs else origin.model.path


def _before(trained: Trained) -> Trained | None:
    """Return the run whose checkpoint this run started from: at its path, or next to this run in a moved pipeline."""
    *_, folder, _, step, last = ("", "", "", *Path(trained.config.model.path).parts)
    if last != "model" or not step.removeprefix("step-").isdecimal():
        return None
    for run in (Path(trained.config.model.path).parents[2], trained.run.resolve().parent / folder):
        if is_inside(run, "config.yaml"):
            try:
                config = load_config(run / "config.yaml").config
            except ConfigError:  # a config of another version cannot be read: leave the run out
                return None
            return Trained(run=run, config=config, step=int(step.removeprefix("step-")))
    return None
