"""Writes a model folder that plain transformers opens, and reads it back to verify it.

The policy is never changed: adapters are merged into copies, one matrix at a time. The written tensors are compared
with the policy's one by one, because no weight format detects a wrong value.
"""

from __future__ import annotations

import copy
import json
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from posttrain.errors import CheckpointError
from posttrain.models.adapters import active_adapter
from posttrain.models.entering import is_part, is_sharded, state_of, whole_copy
from posttrain.models.forward_path import causal_lm, without_adapters
from posttrain.models.modes import without_progress_bars
from posttrain.models.transformers_private import as_in_files, converts_weights, recipes_for
from posttrain.models.unread import Files, files_of, names_in

GREEDY_CHANGES = (
    "repetition_penalty",
    "encoder_repetition_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words_ids",
    "sequence_bias",
    "suppress_tokens",
    "begin_suppress_tokens",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "min_length",
    "min_new_tokens",
)
"""Settings of a generation config that change even greedy answers. The policy was trained and measured without them."""


@dataclass(frozen=True, kw_only=True)
class SavedModel:
    """The folders to which a model was written."""

    model: Path
    """The whole model, with any adapters merged."""
    adapter: Path | None
    """The adapters alone, in peft's format; None if all weights are trained."""


def save_model(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path | str,
    *,
    eos_ids: frozenset[int],
    pad_id: int,
) -> SavedModel:
    """Write `folder` so that `AutoModelForCausalLM` and `AutoTokenizer` open it, in the precision of the weights.

    `generation_config.json` lists every EOS id and the pad id. Sampling defaults stay, but settings that would change
    greedy answers (GREEDY_CHANGES) are removed. With LoRA, the adapters also go to the neighbouring folder `adapter`.
    The policy's weights stay the same to the bit. Raises CheckpointError if what is read back differs.
    """
    lm = causal_lm(model)
    folder = Path(folder)
    with room_beside(folder, model) as keep, without_progress_bars():
        weights = merged_weights(model, keep)
        write_weights(lm, folder, weights, in_parts=is_sharded(model))
        generation_config(lm, eos_ids, pad_id).to_json_file(folder / "generation_config.json")
        tokenizer.save_pretrained(folder)
        verify_weights(folder, lm, weights)
    if not isinstance(model, PeftModel):
        return SavedModel(model=folder, adapter=None)
    adapter = folder.with_name("adapter")
    model.save_pretrained(
        str(adapter),
        selected_adapters=[active_adapter(model)],  # a critic's adapter is not part of the policy
        save_embedding_layers=False,  # "auto" would ask the Hub
        state_dict=dict(state_of(model)) if is_sharded(model) else None,
    )
    _sort_targets(adapter / "adapter_config.json")
    return SavedModel(model=folder, adapter=adapter)


def _sort_targets(path: Path) -> None:
    """Sort a list that peft writes in varying order from process to process, so that equal adapters are equal files."""
    config = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(config.get("target_modules"), list):
        config["target_modules"].sort()
    path.write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")


Keep = Callable[[Tensor], Tensor]


@contextmanager
def room_beside(folder: Path, model: nn.Module) -> Iterator[Keep]:
    """Yield a function that keeps weights until they are written: unchanged in memory, or, for a sharded model, whose
    weights nobody can hold in full, in temporary files next to `folder`, one tensor at a time."""
    if not is_sharded(model):
        yield lambda tensor: tensor
        return
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".gathered-") as place:
        files = count()

        def keep(tensor: Tensor) -> Tensor:
            flat = torch.from_file(
                str(Path(place, str(next(files)))), shared=True, size=max(1, tensor.numel()), dtype=tensor.dtype
            )
            return flat[: tensor.numel()].view(tensor.shape).copy_(tensor)

        yield keep


def write_weights(lm: PreTrainedModel, folder: Path, weights: Mapping[str, Tensor], *, in_parts: bool) -> None:
    """Write weights as `save_pretrained` does. `in_parts`: cut weights that files hold in pieces, such as the experts
    of a layer, one layer at a time, and keep the pieces in files; otherwise all would be copied in memory first."""
    if not in_parts or not converts_weights(lm):
        lm.save_pretrained(folder, state_dict=dict(weights))
        return
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".cut-") as place:
        cut: dict[str, Tensor] = {}
        for number, names in enumerate(_by_layer(weights)):
            file = Path(place, f"{number}.safetensors")
            parts = as_in_files(lm, {name: weights[name] for name in names})
            save_file({name: part.contiguous() for name, part in parts.items()}, file)
            cut |= load_file(file)
        lm.save_pretrained(folder, state_dict=cut, save_original_format=False)


def _by_layer(names: Iterable[str]) -> Iterable[list[str]]:
    """Return the names of each layer together, by the first number in a name; other names go alone."""
    found: dict[str, list[str]] = {}
    for name in names:
        layer = re.match(r"(.*?\.\d+)\.", name)
        found.setdefault(layer[1] if layer else name, []).append(name)
    return found.values()


def merged_weights(model: nn.Module, keep: Keep = lambda tensor: tensor) -> dict[str, Tensor]:
    """Return the state of the plain model, by its own names, with the active adapters merged.

    All tensors have the precision of the model's embedding, even if frozen layers are held in another one (`hold_in`).
    Tensors without adapters are the policy's own; merged and widened ones are new and in main memory.
    """
    lm = without_adapters(model)
    assert isinstance(lm, PreTrainedModel)
    layers = {name: layer for name, layer in lm.named_modules() if isinstance(layer, BaseTunerLayer)}
    adapted: dict[str, list[Any]] = {}
    for name, layer in layers.items():
        adapted.setdefault(_plain(f"{name}.{getattr(layer, 'parameter_name', 'weight')}"), []).append(layer)
    weights = {_plain(key): tensor for key, tensor in state_of(lm, keep) if not _is_adapter(key, layers)}
    for key, on_it in adapted.items():
        weights[key] = keep(_merge(_at_least(weights[key], lm.dtype), _own(on_it)))
    return {key: _in_main_memory(tensor, lm.dtype, keep) for key, tensor in weights.items()}


def _at_least(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(_wide(tensor, dtype))


def _in_main_memory(tensor: Tensor, dtype: torch.dtype, keep: Keep) -> Tensor:
    """Return the tensor in the model's precision, widened in main memory: a GPU has no room for a float32 base."""
    wide = _wide(tensor, dtype)
    return tensor if wide == tensor.dtype else keep(tensor.cpu().to(wide))


def _wide(tensor: Tensor, dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(tensor.dtype, dtype) if tensor.is_floating_point() else tensor.dtype


def _plain(name: str) -> str:
    """Return the name without the wrappers that peft puts around a module."""
    return name.replace(".base_layer", "")


def _is_adapter(key: str, layers: Iterable[str]) -> bool:
    """Return whether this tensor belongs to an adapter and not to its base layer."""
    return any(key.startswith(f"{name}.") and not key.startswith(f"{name}.base_layer.") for name in layers)


def _own(layers: Iterable[Any]) -> Iterable[Any]:
    """Return the layers themselves, or copies with whole weights if theirs are sharded."""
    return [whole_copy(layer) if any(map(is_part, layer.parameters())) else layer for layer in layers]


@torch.no_grad()
def _merge(weight: Tensor, layers: Iterable[Any]) -> Tensor:
    merged = weight.detach().clone()
    for layer in layers:
        for adapter in layer.active_adapters:
            merged += layer.get_delta_weight(adapter).to(merged.device, merged.dtype)
    return merged.cpu()


def generation_config(lm: PreTrainedModel, eos_ids: frozenset[int], pad_id: int) -> GenerationConfig:
    """Return the model's config with every EOS id, the pad id, and without settings that change greedy answers."""
    config = copy.deepcopy(lm.generation_config) if isinstance(lm.generation_config, GenerationConfig) else None
    config = config or GenerationConfig()
    for name in GREEDY_CHANGES:
        setattr(config, name, None)
    config.eos_token_id = sorted(eos_ids) if len(eos_ids) > 1 else min(eos_ids)  # type: ignore[assignment]
    config.pad_token_id = pad_id  # type: ignore[assignment]
    return config


def verify_weights(folder: Path, lm: PreTrainedModel, weights: Mapping[str, Tensor]) -> None:
    """Compare the weights in `folder` with `weights`: names, shapes and every value. Also compare names with the class.

    If files name and cut weights differently from the module (fused experts), put each together again. Raises
    CheckpointError naming the file and the weight.
    """
    _verify_names(lm, weights)
    missing = dict(weights)
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as tensors:
                names = list(tensors.keys())
                if not set(names) <= set(weights):
                    return _verify_opened(folder, lm, weights)
                for name in names:
                    _compare(str(file), name, tensors.get_tensor(name), missing.pop(name))
        except SafetensorError as error:
            raise _unfaithful(str(file), f"cannot be read: {error}") from error
    return _require_written(folder, weights, missing)


_NAMES: dict[tuple[type[PreTrainedModel], str], frozenset[str]] = {}
"""Names of the weights of a plain model, by its class and config, for the last `FEW` of them."""
FEW = 8


def _verify_names(lm: PreTrainedModel, weights: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError unless these are exactly the weights of a plain model of this class and config."""
    kind = type(lm), lm.config.to_json_string(use_diff=False)
    if kind not in _NAMES:
        if len(_NAMES) == FEW:
            del _NAMES[next(iter(_NAMES))]
        _NAMES[kind] = frozenset(_without_weights(lm).state_dict())
    plain = _NAMES[kind]
    for name in plain ^ weights.keys():
        raise _unfaithful("the merged model", f"{'lacks' if name in plain else 'has an unknown'} weight {name}")


def _verify_opened(folder: Path, lm: PreTrainedModel, weights: Mapping[str, Tensor]) -> None:
    paths = files_of(str(folder), {})
    recipes = recipes_for(_without_weights(lm), names_in(paths))
    if isinstance(recipes, str) or lm.dtype == torch.float64:  # compare the whole model then
        reopened = type(lm).from_pretrained(folder, dtype=lm.dtype).state_dict()
        for name, tensor in weights.items():
            _compare(str(folder), name, reopened[name], tensor)
        return
    files = Files(paths, recipes)
    for name in weights.keys() & recipes.keys():
        _compare(str(folder), name, files.part(name).to(weights[name].dtype), weights[name])
    _require_written(folder, weights, weights.keys() - recipes.keys())


def _require_written(folder: Path, weights: Mapping[str, Tensor], missing: Collection[str]) -> None:
    """Raise CheckpointError for a missing weight. For a tied weight, one of its names suffices."""
    written = {weights[name].data_ptr() for name in weights.keys() - set(missing)}
    for name in missing:
        if weights[name].data_ptr() not in written:
            raise _unfaithful(str(folder), f"has no weight {name}")


def _without_weights(lm: PreTrainedModel) -> PreTrainedModel:
    """Return a plain model of this class and config, without memory for weights."""
    with torch.device("meta"):
        return type(lm)(copy.deepcopy(lm.config))


def _compare(where: str, name: str, written: Tensor, meant: Tensor) -> None:
    if written.shape != meant.shape or written.dtype != meant.dtype:
        raise _unfaithful(where, f"holds {name} as {written.dtype} {list(written.shape)}")
    if not torch.equal(written, meant.cpu()):
        raise _unfaithful(where, f"holds other values for {name} than the policy")


def _unfaithful(where: str, what: str) -> CheckpointError:
    return CheckpointError(
        given=f"{where} {what}",
        allowed="exactly the weights of the policy",
        fix="Check the disk and its free space; you can resume the run from the previous checkpoint.",
    )
