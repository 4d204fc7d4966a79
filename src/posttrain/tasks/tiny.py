"""Tiny language models for the built-in tasks: characters as tokens, a Llama of about 130 thousand parameters, and a
short supervised training that leaves it weak on purpose.

    build_tiny_model(find_builtin("sort"), Path("model"), seed=0)     a Hugging Face folder, in seconds
    tiny_model_path("sort", seed=0)                                   the same, built once

`tiny:sort` is the Llama, `tiny-moe:sort` a mixture of experts (Qwen3-MoE) with the same training, and `tiny-wide:sort`
a Llama with fewer and wider heads, which a vLLM server can load.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from posttrain.algorithms import ALGORITHMS
from posttrain.data.collate import collate_examples
from posttrain.data.examples import render_examples
from posttrain.data.order import rows_for_step
from posttrain.data.prompts import Renderer
from posttrain.data.read import Row
from posttrain.models.forward import token_logprobs
from posttrain.models.modes import without_progress_bars
from posttrain.tasks.base import ALPHABET, CONTEXT_LENGTH, SPECIAL_TOKENS, Task, TinyRecipe
from posttrain.tasks.catalogue import find_builtin
from posttrain.types import Batch, Example, count_totals

PAD, BOS, EOS, UNKNOWN = SPECIAL_TOKENS
PAD_ID, BOS_ID, EOS_ID = 0, 1, 2
WARMUP_STEPS, MAX_GRAD_NORM = 10, 1.0


def build_tokenizer(alphabet: str = ALPHABET) -> PreTrainedTokenizerFast:
    """A tokenizer with one token per character. Like Llama's tokenizer, it adds BOS at the front and no EOS at the end.

    >>> tokenizer = build_tokenizer("ab")
    >>> tokenizer("abba").input_ids, tokenizer.decode([4, 5, 2], skip_special_tokens=True)
    ([1, 4, 5, 5, 4], 'ab')
    """
    vocabulary = {token: number for number, token in enumerate([*SPECIAL_TOKENS, *dict.fromkeys(alphabet)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.Fuse()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single=f"{BOS} $A", special_tokens=[(BOS, BOS_ID)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNKNOWN,
        model_max_length=CONTEXT_LENGTH,
    )


def build_model(tokenizer: PreTrainedTokenizerFast, recipe: TinyRecipe, *, seed: int) -> PreTrainedModel:
    """A model with random weights, which the seed determines. Torch's global random state stays unchanged."""
    shared: dict[str, Any] = {
        **recipe.shape(len(tokenizer)),
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        "pad_token_id": PAD_ID,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if not recipe.experts:
            return LlamaForCausalLM(LlamaConfig(**shared))
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(**shared, norm_topk_prob=True))


def build_tiny_model(task: Task, folder: Path, *, seed: int = 0, recipe: TinyRecipe | None = None) -> Path:
    """Write a Hugging Face folder with a tiny model that solves a part of the task's held-out problems."""
    recipe = recipe or task.tiny
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, recipe, seed=seed)
    imitate(model, demonstrations(task, tokenizer, recipe), recipe, seed=seed)
    with without_progress_bars():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def demonstrations(task: Task, tokenizer: PreTrainedTokenizerFast, recipe: TinyRecipe) -> Sequence[Example]:
    """The first training rows of the task with their right answers and EOS, as supervised examples.

    They are the same for every seed, because the choice of these few problems affects the baseline most.
    """
    rows = [
        Row(values={"prompt": row["prompt"], "completion": row["answer"]}, origin=f"{task.name}[{number}]")
        for number, row in enumerate(task.rows(recipe.demonstrations))
    ]
    rendered = render_examples(
        rows,
        Renderer(tokenizer=tokenizer, chat=False),
        eos_ids={EOS_ID},
        max_length=CONTEXT_LENGTH,
        max_dropped=0.0,
        what=f"demonstrations of {task.name}",
    )
    return rendered.rows


def imitate(model: PreTrainedModel, examples: Sequence[Example], recipe: TinyRecipe, *, seed: int) -> None:
    """Train on the examples in the simplest way: the loss and log-probabilities of a run, AdamW, a short warm-up."""
    sft = ALGORITHMS["sft"]()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0, fused=True)
    for step in range(1, recipe.steps + 1):
        chosen = rows_for_step(seed, step, recipe.rows_per_step, len(examples))
        tokens, mask_BT = collate_examples([examples[row] for row in chosen], pad_id=PAD_ID)
        batch = Batch(completion_mask_BT=mask_BT, groups_B=torch.arange(len(chosen)), tokens=tokens)
        outputs = token_logprobs(model, tokens, mask_BT, temperature=1.0)
        loss, _ = sft.loss(outputs, batch, count_totals(batch))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * min(1.0, step / (WARMUP_STEPS + 1))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


# --- built once, then reused -----------------------------------------------------------------------------------------


def tiny_model_path(name: str, *, cache: Path | None = None, seed: int = 0, form: str = "tiny") -> Path:
    """The folder of the model `FORM:NAME` of a task, by default in `cache_folder()`. It is built if it is missing.

    The folder's name contains a hash of everything that determines the weights.
    """
    cache, task = cache or cache_folder(), find_builtin(name).in_form(form)
    prefix = form.removeprefix("tiny").removeprefix("-")
    named = "-".join(filter(None, [prefix, name.replace(":", "-")]))
    folder = cache / f"{named}-seed{seed}-{content_key(task, seed)}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".building-", dir=cache))
    try:
        build_tiny_model(task, draft, seed=seed)
        draft.chmod(0o755)
        draft.rename(folder)
    except OSError:
        if not folder.is_dir():  # otherwise another process was faster, with the same weights
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def content_key(task: Task, seed: int) -> str:
    """Hash of the demonstrations, the recipe and the versions of the libraries, as twelve hexadecimal digits."""
    content = {
        "rows": task.rows(task.tiny.demonstrations),
        "recipe": asdict(task.tiny),
        "alphabet": ALPHABET,
        "seed": seed,
        "versions": [version(name) for name in ("posttrain", "torch", "transformers")],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def cache_folder() -> Path:
    """$POSTTRAIN_CACHE, or the user's cache folder."""
    if chosen := os.environ.get("POSTTRAIN_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "posttrain" / "tiny"
