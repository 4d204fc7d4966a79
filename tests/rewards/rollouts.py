"""Prompts and completions to score."""

from posttrain.types import Completion, Prompt

IN_TIME = 2.5
"""Deadline in seconds of calls of which some never end, so the test waits this long. The other calls must return in
time even if a busy machine stops everything for two seconds."""


def completion(text: str, *, truncated: bool = False) -> Completion:
    ids, end = tuple(text.encode()), "length" if truncated else "eos"
    return Completion(ids=ids, logprobs=(0.0,) * len(ids), versions=(0,) * len(ids), finish_reason=end, text=text)


def prompt(index: int, text: str = "a question", *, chat: bool = False, **columns: object) -> Prompt:
    messages = ({"role": "user", "content": text},) if chat else None
    return Prompt(index=index, ids=(1, 2), text=text, messages=messages, columns=columns)
