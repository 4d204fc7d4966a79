"""A model whose small vocabulary has whole tool calls as single words, so that even random weights call tools."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tests.engines.policies import Settings
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from posttrain.data.prompts import Renderer
from posttrain.engines.local import LocalSampler
from posttrain.episodes.bridge import Bridge
from posttrain.episodes.calls import FORMATS
from posttrain.episodes.episodes import Episodes
from posttrain.episodes.scene import Limits, Scene
from posttrain.episodes.sessions import Sessions, Setup
from posttrain.episodes.tools import find_tool
from posttrain.models.compute import PLAIN, Compute
from posttrain.rewards.load import Target
from posttrain.types import Completion, Prompt

WORLDS = str(Path(__file__).with_name("worlds.py"))
ASKERS = str(Path(__file__).with_name("askers.py"))
EOS = 2
IDS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": EOS, "pad_token_id": 0}


def calling(name: str, **arguments: Any) -> str:
    """A tool call as one word."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments}, separators=(',', ':'))}</tool_call>"


WORDS = (
    *("<pad>", "<bos>", "<eos>", "<unk>", "user", "assistant", "tool", "<", ">", *"abcdefgh"),
    calling("look", place="x"),
    calling("look", place="end"),
    calling("look", place="long"),
    calling("broken", place="x"),
    "<tool_call>{broken</tool_call>",
)
TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}"
    "{% for m in messages %}{{ m.role }} {{ m.content }}{% for c in m.tool_calls or [] %} <tool_call>"
    "{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson(separators=(',', ':')) }}</tool_call>"
    "{% endfor %}{% if m.role == 'assistant' %}<eos>{% endif %} {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per word; unknown words become <unk>."""
    found = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    found.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    names = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
    made = PreTrainedTokenizerFast(tokenizer_object=found, **names)
    made.chat_template = TEMPLATE
    return made


def talker(
    folder: Path | None = None,
    *,
    context: int = 256,
    seed: int = 0,
    width: int = 32,
    layers: int = 2,
    heads: int = 4,
    mlp: int | None = None,
    ends: float = 2.5,
) -> PhiForCausalLM:
    """A model with random weights that end a turn after about three words, or earlier if `ends` is larger; saved with
    its tokenizer if a folder is given."""
    torch.manual_seed(seed)
    config = PhiConfig(
        vocab_size=len(WORDS),
        hidden_size=width,
        intermediate_size=width * 3 // 2 if mlp is None else mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=context,
        **IDS,
        initializer_range=0.2 if width == 32 else 0.02,
    )
    model = PhiForCausalLM(config).eval()
    _end_turns(model.lm_head, ends)
    if folder is not None:
        model.save_pretrained(folder)
        tokenizer().save_pretrained(folder)
    return model


def plain_talker(
    *, context: int = 256, seed: int = 0, width: int = 64, layers: int = 2, mlp: int = 96, ends: float = 2.5
) -> LlamaForCausalLM:
    """A similar model that compiled kernels decode: its rows get the same bits in any batch."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=width,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        max_position_embeddings=context,
        **IDS,
        initializer_range=0.2 if width == 64 else 0.02,
    )
    model = LlamaForCausalLM(config).eval()
    head = torch.nn.Linear(width, config.vocab_size)
    head.weight = model.lm_head.weight
    model.lm_head = head
    _end_turns(head, ends)
    return model


def _end_turns(head: torch.nn.Linear, ends: float) -> None:
    """Let the model draw no special token except the end token, and no word that is missing from the tokenizer."""
    with torch.no_grad():
        head.bias.fill_(0.0)
        head.bias[EOS], head.bias[:EOS], head.bias[EOS + 1], head.bias[len(WORDS) :] = ends, -30.0, -30.0, -30.0


@contextmanager
def episodes(
    environment: str | None = None,
    *,
    tools: Sequence[str] = (),
    max_turns: int = 4,
    max_length: int | None = None,
    attempts: int = 3,
    history: Any = "auto",
    context: int = 256,
    model: PreTrainedModel | None = None,
    compute: Compute = PLAIN,
    **setup: Any,
) -> Iterator[Episodes]:
    """Trajectories of the random model with the environments and tools of worlds.py."""
    target = None if environment is None else Target(path=WORLDS, name=environment)
    found = [find_tool(tool if tool == "calculator" else f"{WORLDS}:{tool}") for tool in tools]
    sessions = Sessions(Setup(environment=target, tools=found, **setup))
    try:
        sessions.start()
        words = tokenizer()
        renderer = Renderer(tokenizer=words, chat=True)
        roles = [*(["user"] if sessions.speaks else []), *(["tool"] if sessions.schemas else [])]
        sampler = LocalSampler(model or talker(context=context), words, {EOS}, shared=True, compute=compute)
        scene = Scene(
            bridge=Bridge.of(renderer, {EOS}, tools=sessions.schemas, roles=roles, history=history),
            sessions=sessions,
            limits=Limits(max_turns=max_turns, max_length=max_length, attempts=attempts),
            calls=FORMATS["hermes"] if sessions.schemas else None,
            context_length=sampler.context_length,
        )
        yield Episodes(sampler=sampler, scene=scene)
    finally:
        sessions.close()


def prompts(count: int, **columns: Any) -> list[Prompt]:
    """Prompts of one word each, with a letter to guess."""
    words = tokenizer()
    found = []
    for index in range(count):
        asked = ({"role": "user", "content": "abcdefgh"[index % 8]},)
        text = str(words.apply_chat_template(list(asked), add_generation_prompt=True, tokenize=False))
        ids = tuple(words(text, add_special_tokens=False).input_ids)
        own = {"secret": "abcdefgh"[index % 8], **columns}
        found.append(Prompt(index=index, ids=ids, text=text, messages=asked, columns=own))
    return found


def play(one: Episodes, asked: Sequence[Prompt], *, group_size: int = 1, **sampling: Any) -> list[list[Completion]]:
    """All completions, in the order of their prompts."""
    settings = Settings(**{"max_completion_length": 30, **sampling})
    found = {(place, g): c for place, g, c in one.each(asked, settings, group_size=group_size, seed=3)}
    return [[found[place, g] for g in range(group_size)] for place in range(len(asked))]
