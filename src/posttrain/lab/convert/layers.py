"""The layers on which PEFT puts adapters if a file names none. They follow from the kind of model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from posttrain.errors import ConfigError, ModelError
from posttrain.lab.plan.architecture import read_config

ATTENDED = ["q_proj", "v_proj"]
FAMILIES = "Llama, Qwen, Mistral, Gemma and OPT"
"""Families for which PEFT chooses ATTENDED."""
_FAMILY = re.compile(r"llama|qwen|mi[sx]tral|gemma|\bopt\b", re.IGNORECASE)


def layers_of(model: Any) -> tuple[list[str], str]:
    """Return PEFT's layers for a model, and a comment; no layers and the reason, if nothing tells them.

    A config.json on this machine tells the kind of model, otherwise the model's name may tell its family.
    """
    kind = _kind(model) if isinstance(model, str) else ""
    if kind:
        from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as CHOSEN  # takes seconds

        layers = CHOSEN.get(kind)
        if isinstance(layers, list):
            return layers, f"PEFT's default for models of type {kind}"
        return [], f"PEFT's default for models of type {kind} is {layers or 'an error'}: name the layers"
    if isinstance(model, str) and _FAMILY.search(Path(model).name):
        return ATTENDED, f"PEFT's default for {FAMILIES}"
    return [], (
        f"PEFT chooses the layers by the kind of model, which {model or 'the file'} does not tell. It takes "
        f"{' and '.join(ATTENDED)} for {FAMILIES}, and others for other models: name the layers"
    )


def _kind(model: str) -> str:
    """Return `model_type` of a config.json on this machine; empty if there is none."""
    try:
        return str(read_config(model).get("model_type") or "")
    except (ConfigError, ModelError):
        return ""
