"""Minimal chat templates in the style of the big model families, over one tokenizer.

Each has the features that distinguish its family: the tokens around a turn, the end of a turn, the format of calls and
results, and whether the reasoning of earlier turns is removed.
"""

# ruff: noqa: E501
from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.data.samples import shared_file
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from posttrain.data.prompts import Renderer
from posttrain.episodes.bridge import Bridge


class Family(NamedTuple):
    template: str
    end: str
    """The token that ends a turn of the policy."""
    special: tuple[str, ...] = ()
    """The other special tokens of the family."""
    rewrites: tuple[str, ...] = ()
    """Roles whose messages make the template rewrite earlier turns."""
    calls: str = ""
    """The format of tool calls; empty if the family has none."""
    also_ends: tuple[str, ...] = ()
    """Further tokens that end a turn."""


_ANSWER = "{% if add_generation_prompt %}"
_CHATML_TOOLS = """\
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>
Call with <tool_call>{"name": ..., "arguments": {...}}</tool_call>.<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}"""
_CHATML_RESULT = """\
{%- elif m.role == 'tool' %}{% if loop.first or loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}
<tool_response>
{{ m.content }}
</tool_response>{% if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>
{% endif %}"""
_CHATML_CALLS = """\
{%- for c in m.tool_calls or [] %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
"""

_HARMONY = """\
<|start|>system<|message|>You are a model.
# Valid channels: analysis, commentary, final.<|end|>
{%- set first = messages[0].content if messages[0].role in ('system', 'developer') else '' %}
{%- if first or tools %}<|start|>developer<|message|>{{ first }}
{%- for tool in tools or [] %}
// {{ tool.function.description }}
type {{ tool.function.name }} = (_: {{ tool.function.parameters | tojson }}) => any;{% endfor %}<|end|>{% endif %}
{%- set said = namespace(name='', final=-1) %}
{%- for m in messages %}{% if m.role == 'assistant' and not m.tool_calls %}
{%- set said.final = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- if '<|channel|>' in m.content or m.tool_calls and m.content and m.thinking %}
{{- raise_exception('channels stand in fields of their own') }}{% endif %}
{%- if m.tool_calls %}
{%- set thought = m.thinking or m.content %}
{%- if thought and loop.index0 > said.final %}<|start|>assistant<|channel|>analysis<|message|>{{ thought }}<|end|>{% endif %}
{%- set said.name = m.tool_calls[0].function.name %}<|start|>assistant to=functions.{{ said.name -}}
<|channel|>commentary json<|message|>{{ m.tool_calls[0].function.arguments | tojson }}<|call|>
{%- elif loop.last and not add_generation_prompt %}
{%- if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif -%}
<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|return|>
{%- else %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>
{%- set said.name = '' %}{% endif %}
{%- elif m.role == 'tool' %}
{%- if not said.name %}{{ raise_exception('a result of no call') }}{% endif -%}
<|start|>functions.{{ said.name }} to=assistant<|channel|>commentary<|message|>{{ m.content | tojson }}<|end|>
{%- elif m.role == 'user' %}<|start|>user<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""
"""gpt-oss: the template keeps reasoning only within a chain of calls, and the end of an answer is no EOS."""

FAMILIES: Mapping[str, Family] = {
    "chatml": Family(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        + _ANSWER
        + "<|im_start|>assistant\n{% endif %}",
        "<|im_end|>",
        ("<|im_start|>",),
    ),
    "hermes": Family(
        _CHATML_TOOLS
        + "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>user\n{{ m.content }}<|im_end|>\n"
        + "{% elif m.role == 'assistant' %}<|im_start|>assistant\n{{ m.content }}"
        + _CHATML_CALLS
        + _CHATML_RESULT
        + "{% endif %}{% endfor %}"
        + _ANSWER
        + "<|im_start|>assistant\n{% endif %}",
        "<|im_end|>",
        ("<|im_start|>", "<tool_response>", "</tool_response>"),
        calls="hermes",
    ),
    "thinking": Family(  # like Qwen3: only reasoning after the last question is kept
        _CHATML_TOOLS + "{% set last = namespace(question=0) %}{% for m in messages %}{% if m.role == 'user' %}"
        "{% set last.question = loop.index0 %}{% endif %}{% endfor %}"
        "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>user\n{{ m.content }}<|im_end|>\n"
        "{% elif m.role == 'assistant' %}{% set said = m.content %}{% set why = '' %}{% if '</think>' in m.content %}"
        "{% set said = m.content.split('</think>')[-1].lstrip('\\n') %}"
        "{% set why = m.content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}{% endif %}"
        "<|im_start|>assistant\n{% if loop.index0 > last.question and (loop.last or why) %}"
        "{{ '<think>\\n' + why + '\\n</think>\\n\\n' }}{% endif %}{{ said }}"
        + _CHATML_CALLS
        + _CHATML_RESULT
        + "{% endif %}{% endfor %}"
        + _ANSWER
        + "<|im_start|>assistant\n{% endif %}",
        "<|im_end|>",
        ("<|im_start|>", "<think>", "</think>"),
        rewrites=("user",),
        calls="hermes",
    ),
    "llama2": Family(
        "{% if messages[0].role == 'system' %}{% set system = '<<SYS>>\\n' + messages[0].content + '\\n<</SYS>>\\n\\n' %}"
        "{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}"
        "{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{% if m.role == 'user' %}"
        "<s>[INST] {{ (system if loop.first else '') + m.content | trim }} [/INST]"
        "{% else %} {{ m.content | trim }} </s>{% endif %}{% endfor %}",
        "</s>",
        ("<s>",),
    ),
    "llama3": Family(
        "<|begin_of_text|>{% if tools %}<|start_header_id|>system<|end_header_id|>\n\nEnvironment: ipython\n"
        "{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|eot_id|>{% endif %}"
        "{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}"
        "{{ raise_exception('one call at a time') }}{% endif %}"
        "{% set f = m.tool_calls[0].function %}<|start_header_id|>assistant<|end_header_id|>\n\n"
        '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}<|eot_id|>'
        "{% elif m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>\n\n{{ m.content | tojson }}<|eot_id|>"
        "{% else %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>{% endif %}"
        "{% endfor %}" + _ANSWER + "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
        "<|eot_id|>",
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"),
        calls="llama",
    ),
    "mistral": Family(
        "<s>{% set ns = namespace(turn=0) %}{% for m in messages %}{% if m.role == 'user' %}"
        "{% if ns.turn % 2 %}{{ raise_exception('roles must alternate') }}{% endif %}{% set ns.turn = ns.turn + 1 %}"
        "{% if tools and loop.first %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
        "[INST]{{ m.content }}[/INST]{% elif m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}"
        "{% if c.id | length != 9 %}{{ raise_exception('an id has nine letters') }}{% endif %}"
        '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}'
        "{% if not loop.last %}, {% endif %}{% endfor %}]</s>"
        '{% elif m.role == \'tool\' %}[TOOL_RESULTS]{"content": {{ m.content | tojson }}, "call_id": '
        '"{{ m.tool_call_id }}"}[/TOOL_RESULTS]'
        "{% elif m.role == 'assistant' %}{% set ns.turn = ns.turn + 1 %}{{ m.content }}</s>"
        "{% else %}[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]{% endif %}{% endfor %}",
        "</s>",
        (
            "<s>",
            "[INST]",
            "[/INST]",
            "[SYSTEM_PROMPT]",
            "[/SYSTEM_PROMPT]",
            "[AVAILABLE_TOOLS]",
            "[/AVAILABLE_TOOLS]",
            "[TOOL_CALLS]",
            "[TOOL_RESULTS]",
            "[/TOOL_RESULTS]",
        ),
        calls="mistral",
    ),
    "gemma": Family(
        "<bos>{% if messages[0].role == 'system' %}{% set first = messages[0].content + '\\n\\n' %}"
        "{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}"
        "{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}"
        "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ first if loop.first else '' }}"
        "{{ m.content | trim }}<end_of_turn>\n{% endfor %}" + _ANSWER + "<start_of_turn>model\n{% endif %}",
        "<end_of_turn>",
        ("<bos>", "<start_of_turn>"),
    ),
    "phi": Family(
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
        + _ANSWER
        + "<|assistant|>\n{% else %}<|endoftext|>{% endif %}",
        "<|end|>",
        ("<|system|>", "<|user|>", "<|assistant|>"),
    ),
    "deepseek": Family(  # removes reasoning from every earlier turn
        "<｜begin▁of▁sentence｜>{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}"
        "{% elif m.role == 'user' %}<｜User｜>{{ m.content }}"
        "{% elif m.role == 'tool' %}<｜tool▁output▁begin｜>{{ m.content }}<｜tool▁output▁end｜>"
        "{% else %}<｜Assistant｜>{{ m.content.split('</think>')[-1].lstrip('\\n') }}{% for c in m.tool_calls or [] %}"
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ c.function.name }}\n```json\n"
        "{{ c.function.arguments | tojson }}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>{% endfor %}"
        "<｜end▁of▁sentence｜>{% endif %}{% endfor %}" + _ANSWER + "<｜Assistant｜>{% endif %}",
        "<｜end▁of▁sentence｜>",
        (
            "<｜begin▁of▁sentence｜>",
            "<｜User｜>",
            "<｜Assistant｜>",
            "<｜tool▁output▁begin｜>",
            "<｜tool▁output▁end｜>",
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁end｜>",
        ),
        rewrites=("user", "tool"),
        calls="deepseek",
    ),
    "harmony": Family(
        _HARMONY,
        "<|return|>",
        ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>"),
        rewrites=("user",),
        calls="harmony",
        also_ends=("<|call|>",),
    ),
    "zephyr": Family(
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}</s>\n{% endfor %}"
        + _ANSWER
        + "<|assistant|>\n{% endif %}",
        "</s>",
    ),
    "command": Family(
        "<BOS_TOKEN>{% for m in messages %}<|START_OF_TURN_TOKEN|>{% if m.role == 'assistant' %}<|CHATBOT_TOKEN|>"
        "{% elif m.role == 'user' %}<|USER_TOKEN|>{% else %}<|SYSTEM_TOKEN|>{% endif %}{{ m.content | trim }}"
        "<|END_OF_TURN_TOKEN|>{% endfor %}" + _ANSWER + "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}",
        "<|END_OF_TURN_TOKEN|>",
        ("<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|USER_TOKEN|>", "<|SYSTEM_TOKEN|>"),
    ),
    "counting": Family(  # the text at the start changes with every turn
        "{{ messages | length }} turns.{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
        + _ANSWER
        + "<|assistant|>{% endif %}",
        "<|end|>",
        rewrites=("user", "tool"),
    ),
}

OF_THE_FOLDER = ("qwen2.5", "smollm2")
"""Models with their published tokenizers and templates."""
WITH_TOOLS = ("qwen2.5", *(name for name, family in FAMILIES.items() if family.calls))
LOOK: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look somewhere.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string", "description": "Where."}}},
    },
}


@functools.cache
def tokenizer_of(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of the folder; all families share one with the vocabulary of SmolLM2 and everyone's special tokens."""
    if name not in FAMILIES:
        return _published(name)
    return _of_all_families()


@functools.cache
def _of_all_families() -> PreTrainedTokenizerBase:
    tokenizer = _published("smollm2")
    names = {name for family in FAMILIES.values() for name in (family.end, *family.special)}
    tokenizer.add_special_tokens({"additional_special_tokens": sorted(names)})
    return tokenizer


def _published(name: str) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(shared_file(f"tokenizers/{name}"))  # its own: all families add tokens to it


def eos_of(name: str) -> int:
    """The id of the token that ends a turn of the policy."""
    tokenizer = tokenizer_of(name)
    end = FAMILIES[name].end if name in FAMILIES else tokenizer.eos_token
    return int(tokenizer.convert_tokens_to_ids(end))  # pyright: ignore


def eos_ids_of(name: str) -> set[int]:
    """The ids of all tokens that end a turn."""
    also = FAMILIES[name].also_ends if name in FAMILIES else ()
    return {eos_of(name), *(int(tokenizer_of(name).convert_tokens_to_ids(end)) for end in also)}  # pyright: ignore


def renderer_of(name: str) -> Renderer:
    own = {"chat_template": FAMILIES[name].template} if name in FAMILIES else None
    return Renderer(tokenizer=tokenizer_of(name), chat=True, template_kwargs=own)


def special_of(name: str) -> dict[str, int]:
    """Texts that the tokenizer reads as one token in any context, with their ids, except white space."""
    tokenizer = tokenizer_of(name)
    added = {str(token): number for number, token in tokenizer.added_tokens_decoder.items()}
    added |= dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
    return {text: number for text, number in added.items() if text.strip()}


def template_of(name: str) -> str:
    return FAMILIES[name].template if name in FAMILIES else str(tokenizer_of(name).chat_template)


def eos_text(name: str) -> str:
    return str(tokenizer_of(name).convert_ids_to_tokens(eos_of(name)))


@functools.cache
def bridge_of(name: str, role: str = "user", history: Any = "keep") -> Bridge:
    tools = [LOOK] if role == "tool" else []
    return Bridge.of(renderer_of(name), eos_ids_of(name), tools=tools, roles=[role], history=history)
