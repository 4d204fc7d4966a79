"""The frozen model that says what it thinks of each token that the policy samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posttrain.errors import ConfigError
from posttrain.models.load import LoadedModel, load_model
from posttrain.tasks.tiny import resolve_model_path
from posttrain.train.policy import Forward

if TYPE_CHECKING:
    from posttrain.config import RunConfig


def teacher_forward(config: RunConfig, student: LoadedModel, forward: Forward) -> Forward:
    """The student's definition of a log-probability, of the model in `teacher`.

    Raises ConfigError when the two do not mean the same tokens by the same ids (RULE 47), or when the teacher's context
    is too short for what the student may see.
    """
    assert config.teacher is not None, "config_rules: an algorithm that needs a teacher has one"
    settings = config.model.model_copy(
        update={**config.teacher.model_dump(), "gguf_file": None, "chat_template": None, "device": "auto"}
    )
    teacher = load_model(resolve_model_path(settings, config.seed), device=student.device)
    check_same_tokens(student, teacher, config.teacher.path)
    check_context(config, student, teacher)
    return forward.under(teacher.model.requires_grad_(False))


def check_same_tokens(student: LoadedModel, teacher: LoadedModel, path: str) -> None:
    """RULE 47: token ids are handed over as they are, so every token must have the same id on both sides."""
    ours, theirs = student.tokenizer.get_vocab(), teacher.tokenizer.get_vocab()
    different = sorted(ours.items() ^ theirs.items(), key=lambda item: (item[1], item[0]))
    if not different:
        return
    token, number = different[0]
    other = (theirs if token in ours and ours[token] == number else ours).get(token)
    raise ConfigError(
        given=f"teacher = {path}, whose tokenizer is another than the policy's: {len(ours)} and {len(theirs)} tokens; "
        f"{token!r} is id {number} in one and {'missing' if other is None else f'id {other}'} in the other",
        allowed="a teacher with the same vocabulary",
        fix="Choose a teacher of the same family of models, which shares its tokenizer.",
    )


def check_context(config: RunConfig, student: LoadedModel, teacher: LoadedModel) -> None:
    """The longest prompt and completion that the run admits fit the teacher's context."""
    longest = student.context_length
    if config.data.max_prompt_length is not None:
        asked = config.data.max_prompt_length + config.sampling.max_completion_length
        longest = asked if longest is None else min(longest, asked)
    if teacher.context_length is None or (longest is not None and longest <= teacher.context_length):
        return
    room = teacher.context_length - config.sampling.max_completion_length
    raise ConfigError(
        given=f"the teacher's context is {teacher.context_length} tokens, and prompt and completion may have "
        f"{'any number' if longest is None else longest} together",
        allowed="rows that fit the teacher's context",
        fix=f"Set data.max_prompt_length = {room}."
        if room > 0
        else f"Lower sampling.max_completion_length below {teacher.context_length}.",
    )
