"""Prompts and completions to be scored."""

from posttrain.types import Completion, Prompt

IN_TIME = 2.5
"""Deadline of calls some of which never end, so that a test waits for it; the others must be back even where a busy
machine stops everything for two seconds."""


def completion(text: str, *, truncated: bool = False) -> Completion:
    ids, end = tuple(text.encode()), "length" if truncated else "eos"
    return Completion(ids=ids, logprobs=(0.0,) * len(ids), versions=(0,) * len(ids), finish_reason=end, text=text)


def prompt(index: int, text: str = "a question", *, chat: bool = False, **columns: object) -> Prompt:
    messages = ({"role": "user", "content": text},) if chat else None
    return Prompt(index=index, ids=(1, 2), text=text, messages=messages, columns=columns)
