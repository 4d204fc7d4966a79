"""Errors that say what was given, what is allowed and how to fix it, and the exit code that each one means.

Every part of the library may import this file; it imports nothing.
"""

from __future__ import annotations


class PosttrainError(Exception):
    """Base of every error raised on purpose.

    `given` is a statement of what was found, `allowed` what would have been right, `fix` the line to change.

    >>> print(ConfigError(given="group_size = 1", allowed="an integer of at least 2", fix="Set group_size = 8."))
    group_size = 1; allowed: an integer of at least 2.
      Set group_size = 8.
    """

    exit_code = 1

    def __init__(self, *, given: str, allowed: str = "", fix: str = "") -> None:
        self.given, self.allowed, self.fix = given, allowed, fix
        message = f"{given}; allowed: {allowed.rstrip('.')}." if allowed else given
        super().__init__(message + (f"\n  {fix}" if fix else ""))

    def __reduce__(self):  # keyword-only arguments survive the trip between processes
        return _rebuild, (type(self), self.given, self.allowed, self.fix)


def _rebuild(kind: type[PosttrainError], given: str, allowed: str, fix: str) -> PosttrainError:
    return kind(given=given, allowed=allowed, fix=fix)


class ConfigError(PosttrainError, ValueError):
    """A setting, or a combination of settings, that cannot be meant."""

    exit_code = 2


class PluginError(ConfigError):
    """Something that another package publishes cannot be used; names the package."""


class DataError(PosttrainError, ValueError):
    """A dataset that cannot be read, or rows in it that cannot be used; names the file and the line."""

    exit_code = 2


class ModelError(PosttrainError, ValueError):
    """A model or tokenizer that cannot be loaded or lacks something that training needs."""

    exit_code = 2


class SandboxUnavailable(PosttrainError):
    """Programs cannot be run confined here; says what was tried. They are never run unconfined instead."""

    exit_code = 2


class DoesNotFit(PosttrainError):
    """The run needs more memory or disk than there is."""

    exit_code = 3


class GuardStop(PosttrainError):
    """A guard stopped the run, because going on would have produced a wrong or a useless model."""

    exit_code = 4


class RewardError(GuardStop):
    """Rewards are missing, not finite or misaligned beyond the stated limit."""


class NonFiniteError(GuardStop):
    """A loss or a gradient is not finite; raised before the optimizer step, so the weights are untouched."""


class AlarmStop(GuardStop):
    """An alarm fired, and the configuration says that a run ends there, or waits for a person."""


class PublishError(GuardStop):
    """The sampler does not run the weights that were trained."""


class EngineError(GuardStop):
    """The engines that sample are gone and cannot be replaced; says who waited for whom."""


class RankLost(PosttrainError):
    """A process of a training job has ended, or does not answer; the job goes on from its newest checkpoint."""

    exit_code = 5


class HandOverError(GuardStop):
    """A stage of a pipeline does not get the model that an earlier stage has trained."""


class CheckpointError(PosttrainError):
    """No checkpoint can be read or written; names the damaged file."""

    exit_code = 1


class StorageError(PosttrainError):
    """The storage behind the URL of a run cannot be read or written; says why. What was written is still here."""

    exit_code = 1


class ExportError(PosttrainError):
    """What was exported is not what was trained, or cannot be written; nothing that looks finished is left."""

    exit_code = 1
