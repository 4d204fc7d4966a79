"""Find the program in a completion: the last block of its last turn, after the reasoning. Only this one is tried, once.

    >>> find_program("First ```python\\nx = 1\\n```\\nthen\\n```python\\ndef f(): return 2\\n```").source
    'def f(): return 2\\n'
    >>> find_program("I do not know.").reason
    'no_answer'

The block is chosen by its place, its language and whether it defines the required function, and never by which one
passes. A completion with several programs is therefore judged by one of them.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

MAX_PROGRAM = 1 << 16
"""Maximum length of a program, in characters. Longer ones are not tried."""
PYTHON = frozenset({"", "python", "python3", "py", "py3"})
"""The languages after an opening fence that mean Python. Other blocks (output, json, bash) are not programs."""

_FENCE = re.compile(
    r"(?:^[ \t]*+(?=```|~~~)|(?<=[^\n`])(?=```py))(?P<fence>```++|~~~++)[ \t]*+(?P<language>[\w.+-]*+)[^\n`]*+$",
    re.MULTILINE,
)
"""A fence as in Markdown; one that names Python may also be at the end of a line. Possessive, so that a line takes one
pass."""
_THOUGHT_END = "</think>"
_THOUGHT = "<think>"
BODY = "\n    pass\n"
"""Body for a function whose first line alone is in the prompt."""
_NAME = "<program>"
warnings.filterwarnings("ignore", module=_NAME)  # Python's warnings about escape sequences in a model's program


@dataclass(frozen=True)
class Found:
    """A program, or the reason why there is none."""

    source: str = ""
    reason: Literal["", "no_answer", "truncated", "too_large"] = ""


def find_program(completion: Any, *, prompt: str = "", function: str | None = None, truncated: bool = False) -> Found:
    """The program in a completion, which is a text, or messages in TRL's form. Of messages, the last one counts.

    `prompt` is code that the completion continues or repeats (HumanEval). Its imports and helpers come before the
    completion. `function` is the required name. `truncated`: the completion was truncated at the length limit.
    """
    text = last_turn(completion)
    nothing = Found(reason="truncated" if truncated else "no_answer")
    answer = after_reasoning(text)
    if answer is None:
        return nothing
    blocks = list(python_blocks(answer))
    if truncated and blocks and not blocks[-1].closed:
        return Found(reason="truncated")
    if blocks:
        source = _chosen(blocks, function)
    elif _FENCE.search(answer):
        return nothing
    else:
        source = answer
    program = _complete(source, prompt, function) if prompt else _parsed(source, bool(blocks))
    if program is None:
        return nothing
    return Found(source=program) if len(program) <= MAX_PROGRAM else Found(reason="too_large")


def last_turn(completion: Any) -> str:
    """The text of a completion; for messages, the text of the last one."""
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Sequence) and completion and isinstance(completion[-1], Mapping):
        return str(completion[-1].get("content") or "")
    return ""


def after_reasoning(text: str) -> str | None:
    """The text after the last `</think>`; None if the reasoning was never closed."""
    _, closed, answer = text.rpartition(_THOUGHT_END)
    if _THOUGHT in answer:
        return None
    return answer if closed else text


@dataclass(frozen=True)
class Block:
    source: str
    closed: bool
    named: bool
    """Whether the fence names Python."""


def _chosen(blocks: Sequence[Block], function: str | None) -> str:
    """The program among the blocks: the last one that defines the function, else that is fenced as Python, else that is
    code, else the last one. A block without a language behind the program often shows its input and output.
    """
    chosen = [block for block in blocks if defines(block.source, function)]
    chosen = chosen or [block for block in blocks if block.named]
    chosen = chosen or [block for block in blocks if _is_code(block.source)]
    return (chosen or blocks)[-1].source


def python_blocks(text: str) -> Iterator[Block]:
    """The fenced blocks that may be Python, in order. A block ends at a bare fence of its kind or with the text."""
    opening: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opening is None:
            opening = fence
        elif fence["fence"].startswith(opening["fence"]) and not fence["language"]:
            if opening["language"].lower() in PYTHON:
                yield _block(text, opening, fence.start(), closed=True)
            opening = None
    if opening is not None and opening["language"].lower() in PYTHON:
        yield _block(text, opening, len(text), closed=False)


def _block(text: str, opening: re.Match[str], end: int, *, closed: bool) -> Block:
    """The block between its opening fence and `end`."""
    return Block(textwrap.dedent(text[opening.end() + 1 : end]), closed=closed, named=opening["language"] != "")


def parses(source: str) -> bool:
    """Whether the text is Python. A text on which the parser fails is not."""
    return tree_of(source) is not None


def tree_of(source: str) -> ast.Module | None:
    try:
        return ast.parse(source, _NAME) if len(source) <= MAX_PROGRAM else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def defines(source: str, function: str | None) -> bool:
    """Whether a program binds this name at its top level."""
    tree = tree_of(source)
    return tree is not None and function is not None and function in top_level_names(tree)


def top_level_names(tree: ast.Module) -> set[str]:
    """The names that a module defines or assigns, without imported names."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def prompt_code(prompt: Any, function: str | None) -> str:
    """The code in a prompt that defines the function, at least by its first line: the whole text, or a block of the
    last message. Empty if there is none."""
    text = last_turn(prompt)
    for source in (text, *(block.source for block in python_blocks(text))):
        if defines(source, function) or defines(source + BODY, function):
            return source
    return ""


def _parsed(source: str, fenced: bool) -> str | None:
    """The source of a program, or None. A fenced block is always a program, and an error if it is not Python. Other
    text has to parse."""
    return source if fenced or (source.strip() and _is_code(source)) else None


def _is_code(text: str) -> bool:
    """Whether the text is Python with an effect. Prose such as `42`, `yes` or `Input: 1` parses too."""
    tree = tree_of(textwrap.dedent(text))
    return tree is not None and any(_has_effect(node) for node in tree.body)


def _has_effect(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr) or (isinstance(node, ast.AnnAssign) and node.value is None):
        return any(isinstance(part, ast.Call) for part in ast.walk(node))
    return True


def _complete(source: str, prompt: str, function: str | None) -> str | None:
    """The prompt and its continuation. A base model continues after the function, and this part is cut.

    If the completion repeats the function, with or without the prompt's imports, it replaces the prompt's version.
    """
    if not source.strip():
        return None
    if defines(source, function):
        return f"{prompt if parses(prompt) else prompt + BODY}\n\n{source}"
    head = prompt if prompt.endswith("\n") else prompt + "\n"
    for body in (source, source.lstrip("\n"), textwrap.indent(textwrap.dedent(source), "    ")):
        for continuation in (body, _first_part(body)):
            tree = tree_of(head + continuation) if continuation.strip() else None
            if tree is not None and not _returns_outside(tree):
                return head + continuation
    return None


def _returns_outside(tree: ast.Module) -> bool:
    """Whether a `return` is outside of any function, because the body was not indented."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(
        isinstance(part, ast.Return) for node in tree.body if not isinstance(node, functions) for part in ast.walk(node)
    )


def _first_part(body: str) -> str:
    """The continuation up to its first line without indentation."""
    lines = body.splitlines(keepends=True)
    end = next((n for n, line in enumerate(lines) if line.strip() and not line[0].isspace()), len(lines))
    return "".join(lines[:end])
