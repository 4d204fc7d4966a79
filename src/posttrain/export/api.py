"""`export`: writes a trained model to a folder that other programs can open, if a replay gives the same outputs."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoConfig

from posttrain.errors import ConfigError, DoesNotFit, ExportError, ModelError
from posttrain.export import replay as replay_script
from posttrain.export.card import write_card
from posttrain.export.compare import Replay, compare
from posttrain.export.origin import Origin, find_origin, load
from posttrain.export.probes import Expected, answers, find_probes
from posttrain.export.target import SPARE, Written, check_place, clean, merged, write_hf, written_whole
from posttrain.models.load import LoadedModel
from posttrain.models.reward_head import ScoringFacts
from posttrain.shown import shown

DTYPES = {"hf": ("float32", "bfloat16", "float16"), "gguf": ("float32", "bfloat16", "float16", "q8_0")}
"""Export format -> allowed precisions of the weights."""
BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "q8_0": 34 / 32}


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A finished export, and the replay that proves that it is the trained model."""

    folder: Path
    file: Path | None
    """Path of the GGUF file; None for a Hugging Face folder."""
    to: str
    dtype: str
    parameters: int
    bytes: int
    """Total size of all files in bytes."""
    step: int | None
    """Step of the run's checkpoint; None for a model without a run."""
    replay: Replay
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "folder": str(self.folder), "file": None if self.file is None else str(self.file)}

    def render(self) -> str:
        """Return the result as text for people."""
        lines = [
            f"exported   {self.file or self.folder}",
            f"model      {self.parameters:,} parameters, {self.dtype}, {self.bytes / 1e6:.1f} MB",
            f"replayed   {self.replay.prompts} prompts ({self.replay.source}) through plain transformers:",
            *(f"           {fact}" for fact in self.replay.facts()),
            *(f"tie        {tie}" for tie in self.replay.ties),
            *(f"note       {note}" for note in self.notes),
        ]
        return "\n".join(lines)


def export(
    source: str | os.PathLike[str],
    output: str | Path | None = None,
    *,
    to: Literal["hf", "gguf"] = "hf",
    dtype: str | None = None,
    step: int | None = None,
    base: str | None = None,
    prompts: str | None = None,
    num_prompts: int = 8,
    max_new_tokens: int = 32,
    force: bool = False,
    device: str = "auto",
) -> Exported:
    """Write the model of a run, a model folder or LoRA adapters to a new folder, and replay prompts through it.

    `to` is "hf" (safetensors, tokenizer, generation config) or "gguf" (one file for llama.cpp). `dtype` defaults to the
    precision of the source. For a run, the newest checkpoint is exported, or the checkpoint of `step`. `output`
    defaults to export/<to> in the run, or to <model>-<to> in this directory. A folder that is not empty is replaced
    only with `force`.

    The prompts are held-out rows of the run, rows of the file `prompts`, or built-in ones. Raises ExportError, and
    leaves nothing behind, if the exported model answers differently from the trained one (see compare.py), DoesNotFit
    for a full disk, and ConfigError, DataError or ModelError for wrong arguments.
    """
    _check_arguments(to, dtype, num_prompts, max_new_tokens)
    _check_is_folder(output)
    origin = find_origin(source, step=step, base=base)
    folder = Path(output) if output is not None else _default_folder(origin, to)
    clean(folder)
    check_place(folder, Path(source), force=force)
    write = _writer(to, origin)
    loaded = load(origin, device)
    dtype = dtype or _dtype_of(origin)
    probes = find_probes(origin, loaded, file=prompts, count=num_prompts, max_new_tokens=max_new_tokens)
    expected = answers(loaded, origin.head, probes.rows, max_new_tokens=max_new_tokens)
    place = str(loaded.device)
    size = int(sum(p.numel() for p in loaded.model.parameters()) * BYTES[dtype]) + SPARE
    with written_whole(folder, size=size) as aside:
        written = write(loaded, aside, dtype)
        del loaded  # the replay needs the memory
        _free()
        reply = replay(aside, origin, expected, written, device=place, max_new_tokens=max_new_tokens)
        compared = compare(
            expected, reply, written.digests, dtype=dtype, source=probes.source, stop_strings=written.stop_strings
        )
        write_card(aside, origin, written, compared, to=to)
        total = sum(path.stat().st_size for path in aside.rglob("*") if path.is_file())
    return Exported(
        folder=folder,
        file=folder / written.file if written.file else None,
        to=to,
        dtype=dtype,
        parameters=written.parameters,
        bytes=total,
        step=origin.step,
        replay=compared,
        notes=probes.notes,
    )


def _check_arguments(to: str, dtype: str | None, num_prompts: int, max_new_tokens: int) -> None:
    if to not in DTYPES:
        raise ConfigError(given=f"to = {to!r}", allowed=", ".join(DTYPES), fix="Set to = 'hf'.")
    if dtype is not None and dtype not in DTYPES[to]:
        raise ConfigError(
            given=f"dtype = {dtype!r} with to = {to!r}", allowed=", ".join(DTYPES[to]), fix="Leave dtype out."
        )
    for name, value in (("num_prompts", num_prompts), ("max_new_tokens", max_new_tokens)):
        if value < 1:
            raise ConfigError(given=f"{name} = {value}", allowed="at least 1", fix=f"Leave {name} out.")


def _check_is_folder(output: str | Path | None) -> None:
    """Raise ConfigError if `output` looks like the name of a file: an export always writes a folder."""
    suffix = Path(output or "").suffix
    if suffix in (".gguf", ".safetensors", ".bin", ".pt", ".zip"):
        folder = Path(output or "").with_suffix("")
        to = "gguf" if suffix == ".gguf" else "hf"
        raise ConfigError(
            given=f"output = {output}, which names a file",
            allowed="the name of a folder: an export is the model with its card",
            fix=f"Give a folder: posttrain export RUN {shown(folder)} --to {to}.",
        )


def _default_folder(origin: Origin, to: str) -> Path:
    return Path(f"{origin.name}-{to}") if origin.run is None else origin.run / "export" / to


def _dtype_of(origin: Origin) -> str:
    """Return the precision in which plain transformers would load the source."""
    if origin.model.gguf_file is not None:
        return "float32"
    config = AutoConfig.from_pretrained(origin.model.path, trust_remote_code=origin.model.trust_remote_code)
    found = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    return found if found in BYTES else "float32"


def _writer(to: str, origin: Origin) -> Callable[[LoadedModel, Path, str], Written]:
    """Return the function that fills the folder. Raises errors about the format before anything is computed."""
    if to == "gguf":
        _require_gguf(origin)
        from posttrain.export.gguf.writer import write_gguf

        return lambda loaded, folder, dtype: write_gguf(merged(loaded), folder, name=origin.name, dtype=dtype)
    facts = ScoringFacts.read(Path(origin.model.path)) if origin.head != "tokens" else None
    return lambda loaded, folder, dtype: write_hf(merged(loaded), origin.head, folder, dtype=dtype, facts=facts)


def _require_gguf(origin: Origin) -> None:
    """Raise ModelError if the package gguf is missing, and ConfigError for a reward model."""
    if importlib.util.find_spec("gguf") is None:
        raise ModelError(
            given="--to gguf needs the package gguf, which is not installed",
            fix="Run: pip install 'posttrain[gguf]'",
        )
    if origin.head != "tokens":
        raise ConfigError(
            given=f"{origin.name} is a reward model, but --to gguf writes only language models",
            allowed="hf",
            fix="Export with --to hf.",
        )


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def replay(
    folder: Path,
    origin: Origin,
    expected: Sequence[Expected],
    written: Written,
    *,
    device: str,
    max_new_tokens: int,
) -> dict[str, Any]:
    """Return the outputs of the exported model, from a process that imports transformers and nothing of this library.

    Raises ExportError with the last lines of the process if it failed, and DoesNotFit if it was killed for memory.
    """
    request = {
        "folder": str(folder),
        "gguf_file": written.file,
        "head": origin.head,
        "device": device,
        "probes": [
            {
                "ids": list(one.probe.ids),
                "completion_ids": list(one.ids),
                "max_new_tokens": max_new_tokens,
                "text": one.probe.text,
                "add_special_tokens": one.probe.add_special_tokens,
                "messages": one.probe.messages and list(one.probe.messages),
                "template_kwargs": dict(one.probe.template_kwargs),
            }
            for one in expected
        ],
    }
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryDirectory() as scratch:
        asked, answered = Path(scratch, "request.json"), Path(scratch, "reply.json")
        asked.write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, "-P", str(replay_script.__file__), str(asked), str(answered)]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | offline, check=False)
        if done.returncode == 0:
            return json.loads(answered.read_text(encoding="utf-8"))
    if done.returncode == -9:
        raise DoesNotFit(given="the replay of the exported model was killed, probably because memory ran out")
    last = "\n  ".join(done.stderr.strip().splitlines()[-3:])
    raise ExportError(
        given=f"plain transformers cannot open and run the exported model:\n  {last}\n",
        allowed="a folder that from_pretrained opens",
        fix="Nothing was left behind. Report this with the lines above.",
    )
