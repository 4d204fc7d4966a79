"""Frozen models beside the policy, a teacher or a reference of its own: what they say about each of its tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posttrain.errors import ConfigError
from posttrain.models.load import LoadedModel, load_model
from posttrain.models.named import resolve_model_path
from posttrain.models.policy import Forward
from posttrain.models.reading import called

if TYPE_CHECKING:
    from posttrain.config import ReferenceConfig, RunConfig, TeacherConfig

    FrozenConfig = TeacherConfig | ReferenceConfig


def load_frozen(
    section: str, entry: FrozenConfig, config: RunConfig, student: LoadedModel, forward: Forward
) -> Forward:
    """The policy's definition of a log-probability, of the model that `section` of the configuration names.

    Raises ConfigError when the two do not mean the same tokens by the same ids (RULE 47), or when the other context is
    too short for what the policy may see.
    """
    settings = config.model.model_copy(
        update={**entry.model_dump(), "gguf_file": None, "chat_template": None, "device": "auto"}
    )
    with called(f"{section}.path"):
        frozen = load_model(resolve_model_path(settings, config.seed), device=student.device)
    check_same_tokens(section, entry.path, student, frozen)
    check_context(section, config, student, frozen)
    return forward.under(frozen.model.requires_grad_(False))


def check_same_tokens(section: str, path: str, student: LoadedModel, frozen: LoadedModel) -> None:
    """RULE 47: token ids are handed over as they are, so every token must have the same id on both sides."""
    ours, theirs = student.tokenizer.get_vocab(), frozen.tokenizer.get_vocab()
    different = sorted(ours.items() ^ theirs.items(), key=lambda item: (item[1], item[0]))
    if not different:
        return
    token, number = different[0]
    other = (theirs if token in ours and ours[token] == number else ours).get(token)
    raise ConfigError(
        given=f"{section} = {path}, whose tokenizer is another than the policy's: {len(ours)} and {len(theirs)} tokens;"
        f" {token!r} is id {number} in one and {'missing' if other is None else f'id {other}'} in the other",
        allowed=f"a {section} with the same vocabulary",
        fix="Choose a model of the same family, which shares its tokenizer.",
    )


def check_context(section: str, config: RunConfig, student: LoadedModel, frozen: LoadedModel) -> None:
    """The longest prompt and completion that the run admits fit the other context."""
    longest = student.context_length
    if config.data.max_prompt_length is not None:
        asked = config.data.max_prompt_length + config.sampling.max_completion_length
        longest = asked if longest is None else min(longest, asked)
    if frozen.context_length is None or (longest is not None and longest <= frozen.context_length):
        return
    room = frozen.context_length - config.sampling.max_completion_length
    raise ConfigError(
        given=f"the {section}'s context is {frozen.context_length} tokens{frozen.context_reason}, and prompt "
        f"and completion may have {'any number' if longest is None else longest} together",
        allowed=f"rows that fit the {section}'s context",
        fix=f"Set data.max_prompt_length = {room}."
        if room > 0
        else f"Lower sampling.max_completion_length below {frozen.context_length}.",
    )
