"""Find the families of language models that can be trained, by training a tiny random model of each.

    python -m benchmarks.supported_models              every family of the installed transformers; writes the page
    python -m benchmarks.supported_models qwen3 mamba  only these; the other entries of the page stay

A family is an entry in transformers' list of causal language models. Its config class makes a model with two layers, a
few thousand parameters and random weights. The model samples with its own decoding, and does a step of GRPO and a step
of DPO. "yes" means that sampler and trainer gave the same log-probabilities within `SAME` nats, that the gradient was
finite and not 0, and that the weights moved. Families whose config cannot be made that small, or that are part of a
larger model, are listed with the reason.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

from posttrain.algorithms import DPO, GRPO
from posttrain.config import LoRAConfig
from posttrain.loop import Policy, Sampling, count_totals
from posttrain.models.adapters import apply_lora
from posttrain.models.forward_path import forward_path
from posttrain.models.policy import Forward
from posttrain.models.sharding import blocks_of
from posttrain.models.transformers_private import router_kinds
from posttrain.tasks.tiny import BOS_ID, EOS_ID, PAD_ID, build_tokenizer
from posttrain.types import Batch, Outputs

ROOT = Path(__file__).parent.parent
PAGE, RESULT = ROOT / "docs" / "supported-models.md", Path(__file__).parent / "results" / "supported_models.json"
SAME = 1e-3
"""Largest difference between sampler and trainer on a token, in nats."""
MOST_PARAMETERS, MOST_SECONDS = 5_000_000, 60
YES = "yes"

SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "word_embed_proj_dim", "embedding_size"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "d_ff", "ffn_hidden_size", "d_inner"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "multi_query_group_num"), 2),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 16),
    **dict.fromkeys(("head_dim", "kv_channels", "attention_head_dim", "v_head_dim", "qk_rope_head_dim"), 8),
    **dict.fromkeys(("qk_nope_head_dim", "rotary_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim"), 48),
    "vocab_size_per_layer_input": len(build_tokenizer()),
    "hidden_size_per_layer_input": 8,
    "pad_token_id": PAD_ID,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
}
"""Name of a size in the configs -> its value."""
FOUR_LAYERS = {"num_hidden_layers": 4}
"""For families in which only every third or fourth layer is attention."""
SPECIAL: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "max_position_embeddings": 256},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1},
    "falcon": {"num_kv_heads": 4},
    **dict.fromkeys(("bailing_hybrid", "kimi_linear", "recurrent_gemma"), FOUR_LAYERS),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen4_exp_text"), FOUR_LAYERS),
}
"""Additional settings of single families."""


class NotBuilt(Exception):
    """No small model of this family can be made here."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """The results of one family: "yes", or a reason."""

    family: str
    model: str
    """Name of the class in transformers."""
    built: str = YES
    grpo: str = ""
    dpo: str = ""
    lora: str = ""
    rows: str = ""
    """How several rows go through the model together (posttrain.models.forward_path)."""
    shares: bool = False
    """Whether a common beginning of rows is computed once."""
    experts: bool = False
    devices: bool = False
    """Whether `train.devices` supports it, by the code: its rows can be packed and its layers are found."""

    @property
    def trains(self) -> bool:
        return self.grpo == self.dpo == YES


def families() -> list[str]:
    """All causal language models of the installed transformers."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def found(family: str) -> Found:
    """Build a model of a family, and try everything."""
    torch.manual_seed(0)
    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family]
    named = {"family": family, "model": name if isinstance(name, str) else name[0]}
    try:
        with _at_most(MOST_SECONDS):
            model = tiny(family)
    except Exception as reason:
        return Found(**named, built=_words(reason))
    told = Found(**named, experts=bool(router_kinds(model)))
    try:
        with _at_most(MOST_SECONDS):
            policy = Policy((model, build_tokenizer()))
            batch = sampled(policy)
            path = forward_path(model)
            told = replace(told, rows=path.attention, shares=path.shares_prefixes)
            told = replace(told, devices=path.attention != "padded" and bool(blocks_of(model)))
    except Exception as reason:
        return replace(told, grpo=_words(reason), dpo=_words(reason), lora=_words(reason))
    told = replace(told, grpo=_tried(lambda: step(policy.model, policy, GRPO(), batch)))
    told = replace(told, dpo=_tried(lambda: step(policy.model, policy, DPO(), pairs(policy, batch))))
    return replace(told, lora=_tried(lambda: step(apply_lora(model, LoRAConfig(rank=2)), policy, GRPO(), batch)))


def tiny(family: str) -> PreTrainedModel:
    """A small random model of a family. Raises NotBuilt."""
    kind = CONFIG_MAPPING[family]
    plain = kind()
    if plain.get_text_config(decoder=True) is not plain:
        raise NotBuilt("its config belongs to a larger model with an encoder, images or sound")
    known = {*vars(plain), *(getattr(plain, "attribute_map", None) or {})}
    sizes = {"vocab_size": len(build_tokenizer()), **SIZES, **SPECIAL.get(family, {})}
    if "kv_lora_rank" in known:  # latent attention: the keys of all heads come from one vector
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    config = kind(**{name: value for name, value in sizes.items() if name in known or name in SPECIAL.get(family, {})})
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in AutoModelForCausalLM.from_config(config).parameters())
    if size > MOST_PARAMETERS:
        raise NotBuilt(f"the model has {size:,} parameters at the smallest sizes that this trial gives its config")
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def sampled(policy: Policy) -> Batch:
    """Two prompts with four sampled answers each. Raises ValueError if the trainer's log-probabilities differ."""
    prompts = policy.prompts([{"prompt": "dcba"}, {"prompt": "fed"}])
    groups = policy.sample(prompts, Sampling(group_size=4, max_completion_length=6), seed=0)
    experience = policy.experience(groups, torch.tensor([[1.0, 0.0, 0.5, 0.0], [0.0, 1.0, 0.0, 0.25]]))
    algorithm = GRPO()
    batch = algorithm.prepare(algorithm.to_batch(experience))
    assert experience.sampling_logprobs_BT is not None
    apart_BT = (policy.logprobs(batch) - experience.sampling_logprobs_BT).abs()
    apart = float(apart_BT[batch.completion_mask_BT].max())
    if not apart <= SAME:
        raise ValueError(f"sampler and trainer differ by {apart:.2g} nats")
    return batch


def pairs(policy: Policy, batch: Batch) -> Batch:
    """Pairs, with the answers to the first prompt as chosen and those to the second as rejected."""
    without = Batch.from_pairs(batch.completion_mask_BT, tokens=batch.tokens)
    return replace(without, ref_logprobs_BT=policy.logprobs(without))


def step(model: torch.nn.Module, policy: Policy, algorithm: Any, batch: Batch) -> None:
    """Do one optimizer step. Raises ValueError if the gradient is not finite or 0, or if no weight moved."""
    forward = Forward(model, temperature=1.0, chunk_tokens=1024, compute=policy.loaded.compute)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    before = [parameter.detach().clone() for parameter in trained]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    outputs: Outputs = forward(batch)
    loss, _ = algorithm.loss(outputs, batch, count_totals(batch))
    loss.backward()
    norm = float(torch.nn.utils.clip_grad_norm_(trained, 1.0))
    if not 0 < norm < float("inf"):
        raise ValueError(f"the norm of the gradient is {norm}")
    optimizer.step()
    optimizer.zero_grad()
    if all(torch.equal(old, new) for old, new in zip(before, trained, strict=True)):
        raise ValueError("no weight moved")


def _tried(act: Callable[[], None]) -> str:
    try:
        with _at_most(MOST_SECONDS):
            act()
    except Exception as reason:
        return _words(reason)
    return YES


def _words(reason: Exception) -> str:
    """The first line of an error, without characters that would break a table."""
    if isinstance(reason, NotBuilt):
        return str(reason)
    lines = str(reason).strip().splitlines() or [""]
    return f"{type(reason).__name__}: {lines[0]}"[:160].replace("|", "/")


@contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


# --- the page --------------------------------------------------------------------------------------------------------


def on_file() -> tuple[str, list[Found]]:
    """The version of transformers, and the results with it."""
    told = json.loads(RESULT.read_text(encoding="utf-8"))
    return told["transformers"], [Found(**one) for one in told["families"]]


TEXT = """\
<!-- written by: python -m benchmarks.supported_models -->
# Supported models

```text
python -m benchmarks.supported_models                 test every family, and write this page
python -m benchmarks.supported_models qwen3 mamba     test only these families; the rest of the page stays
```

Does your model train? posttrain has no list of model names: any causal language model of transformers may work. The
command tests a tiny random model of each family in transformers {transformers}. The model samples, and takes one step
of GRPO and one step of DPO. This page shows the results.

**{good} of the {built} families that could be built take both steps.** Sampler and trainer gave the same
log-probabilities (within {same:g} nats), the gradient was finite and not 0, and the weights moved. This does not show
how well a pretrained model learns.

- **Rows** shows how several rows go through the model together. *packed*: without padding, with attention row by row.
  *shared*: a common prefix of rows is computed once. *block mask*: as one sequence with a mask. *padded*: right-padded
  rows, which is the slowest way.
- **LoRA** shows whether a step of GRPO works with adapters on all linear layers (`lora.target_modules: all-linear`).
- **Devices** shows whether the code supports `train.devices` above 1, that is, whether rows can be packed and layers
  are found. [Several devices](devices.md) lists the runs that were made.
"""


def page(transformers: str, results: Sequence[Found]) -> str:
    """The text of docs/supported-models.md."""
    built = [one for one in results if one.built == YES]
    good = [one for one in built if one.trains]
    bad = [one for one in built if not one.trains]
    adapted = [one for one in good if one.lora != YES]
    rest = [one for one in results if one.built != YES]
    parts = [
        TEXT.format(transformers=transformers, good=len(good), built=len(built), same=SAME),
        _table(("family", "class", "rows", "LoRA", "mixture of experts", "devices"), map(_facts, good)),
        _section(
            "Families that do not take both steps",
            ("GRPO", "DPO"),
            [(o.family, o.grpo, "the same" if o.dpo == o.grpo else o.dpo) for o in bad],
        ),
        _section("Families without LoRA on all linear layers", ("reason",), [(o.family, o.lora) for o in adapted]),
        _section("Families that were not built", ("reason",), [(o.family, o.built) for o in rest]),
    ]
    return "\n".join(filter(None, parts))


def _facts(one: Found) -> tuple[str, ...]:
    marks = (one.lora == YES, one.experts, one.devices)
    return (f"`{one.family}`", one.model, _rows(one), *("yes" if mark else "no" for mark in marks))


def _section(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = ([f"`{family}`", *map(_cell, reasons)] for family, *reasons in rows)
    return f"## {title}\n\n{_table(('family', *head), cells)}" if rows else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _rows(one: Found) -> str:
    return f"{one.rows}, shared" if one.shares else one.rows


def _cell(reason: str) -> str:
    return reason if reason == YES else f"`{reason.replace('`', '')}`" if ":" in reason else reason


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="FAMILY")
    named = parser.parse_args().families
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    results, begun = [], time.monotonic()
    for family in named or families():
        results.append(found(family))
        one = results[-1]
        told = one.built if one.built != YES else f"GRPO {one.grpo}, DPO {one.dpo}, LoRA {one.lora}, {_rows(one)}"
        print(f"{time.monotonic() - begun:5.0f} s  {family}: {told}", flush=True)
    before = {one.family: one for one in on_file()[1]} if named else {}
    merged = sorted((before | {one.family: one for one in results}).values(), key=lambda one: one.family)
    used = version("transformers")
    told = {"transformers": used, "families": [asdict(one) for one in merged]}
    RESULT.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(used, merged), encoding="utf-8")


if __name__ == "__main__":
    main()
