"""The code that a user of an exported folder would run: plain transformers, in a process without this library.

    python replay.py REQUEST.json REPLY.json

It runs as a file, so that nothing of posttrain is imported: a model that opens here opens anywhere. Greedy tokens come
from `generate`, log-probabilities from one forward pass without cache over the tokens that the trained model chose.
Generation does not stop at stop strings; the reply lists those that the folder has.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    GenerationConfig,
)

HEADS: dict[str, Any] = {
    "tokens": AutoModelForCausalLM,
    "score": AutoModelForSequenceClassification,
    "steps": AutoModelForTokenClassification,
}
"""Kind of output -> class that loads the model."""


def digest(tensor: Tensor) -> str:
    """Return a hash of every bit of a tensor, its dtype and its shape."""
    found = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)} ".encode())
    found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def digests(weights: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
    return {name: digest(tensor) for name, tensor in weights}


def open_model(request: Mapping[str, Any]) -> tuple[nn.Module, Any]:
    """Load model and tokenizer in the way that the model card describes."""
    folder, more = request["folder"], {}
    if request["gguf_file"]:
        more = {"gguf_file": request["gguf_file"]}
        kind = getattr(transformers, "GgufConfig", None)
        reading = more | {"dtype": torch.float32} | ({"quantization_config": kind(dequantize=True)} if kind else {})
    else:
        reading = {}
    model = HEADS[request["head"]].from_pretrained(folder, **reading).to(request["device"]).eval()
    return model, AutoTokenizer.from_pretrained(folder, **more)


def stop_strings(request: Mapping[str, Any]) -> list[str]:
    """Return the stop strings of the folder. A GGUF file cannot hold them, so the generation config next to it does."""
    if request["head"] != "tokens":
        return []
    return GenerationConfig.from_pretrained(request["folder"]).stop_strings or []


def continued(model: Any, probe: Mapping[str, Any]) -> dict[str, Any]:
    """Return greedy tokens after the prompt, and the log-probability of each token that the trained model chose."""
    prompt, given = probe["ids"], probe["completion_ids"]
    ids_1T = torch.tensor([prompt], device=model.device)
    generated_1T = model.generate(
        ids_1T,
        attention_mask=torch.ones_like(ids_1T),
        do_sample=False,
        max_new_tokens=probe["max_new_tokens"],
        stop_strings=None,
    )
    whole_1T = torch.tensor([prompt + given], device=model.device)
    logits_TV = model(input_ids=whole_1T, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    chosen_T1 = torch.tensor(given, device=model.device)[:, None]
    logprobs_T = logits_TV.log_softmax(dim=-1).gather(1, chosen_T1)[:, 0]
    return {"generated": generated_1T[0, len(prompt) :].tolist(), "logprobs": logprobs_T.tolist()}


def scored(model: Any, probe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the score of the whole row, or of its last step."""
    ids_1T = torch.tensor([probe["ids"]], device=model.device)
    logits = model(input_ids=ids_1T, attention_mask=torch.ones_like(ids_1T)).logits
    return {"score": logits.float().flatten()[-1].item()}


def read(tokenizer: Any, probe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ids that the folder's tokenizer gives for a prompt, and the text that its chat template renders."""
    found: dict[str, Any] = {"tokens": None, "rendered": None, "decoded": tokenizer.decode(probe["ids"])}
    if probe["text"] is not None:
        found["tokens"] = tokenizer(probe["text"], add_special_tokens=probe["add_special_tokens"]).input_ids
    if probe["messages"] is not None:
        found["rendered"] = tokenizer.apply_chat_template(
            probe["messages"], tokenize=False, add_generation_prompt=True, **probe["template_kwargs"]
        )
    return found


@torch.no_grad()
def main(request_file: str, reply_file: str) -> None:
    request = json.loads(Path(request_file).read_text(encoding="utf-8"))
    model, tokenizer = open_model(request)
    say = continued if request["head"] == "tokens" else scored
    answers = [say(model, probe) | read(tokenizer, probe) for probe in request["probes"]]
    reply = {"answers": answers, "digests": digests(model.state_dict().items()), "stop_strings": stop_strings(request)}
    Path(reply_file).write_text(json.dumps(reply), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
