"""Errors that say what was given, what is allowed and how to fix it, and the exit code that each one means.

Every part of the library may import this file; it imports nothing.
"""

from __future__ import annotations


class PosttrainError(Exception):
    """Base class of every error that posttrain raises on purpose.

    `given` states what was found, `allowed` states what would have been right, and `fix` says what to change.

    >>> print(ConfigError(given="group_size = 1", allowed="an integer of at least 2", fix="Set group_size = 8."))
    group_size = 1; allowed: an integer of at least 2.
      Set group_size = 8.
    """

    exit_code = 1
    is_lasting = False
    """True for an error of a resumed run that a second resume would meet again until somebody changes something."""

    def __init__(self, *, given: str, allowed: str = "", fix: str = "") -> None:
        self.given, self.allowed, self.fix = given, allowed, fix
        message = f"{given}; allowed: {allowed.rstrip('.')}." if allowed else given
        super().__init__(message + (f"\n  {fix}" if fix else ""))

    def __reduce__(self):  # keyword-only arguments survive the trip between processes
        return _rebuild, (type(self), self.given, self.allowed, self.fix)


def _rebuild(kind: type[PosttrainError], given: str, allowed: str, fix: str) -> PosttrainError:
    return kind(given=given, allowed=allowed, fix=fix)


class ConfigError(PosttrainError, ValueError):
    """A setting, or a combination of settings, that is not valid."""

    exit_code = 2


class PluginError(ConfigError):
    """An extension of another package cannot be used. The message names the package."""


class DataError(PosttrainError, ValueError):
    """A dataset cannot be read, or some of its rows cannot be used. The message names the file and the line."""

    exit_code = 2


class ModelError(PosttrainError, ValueError):
    """A model or tokenizer cannot be loaded, or lacks something that training needs."""

    exit_code = 2


class SandboxUnavailable(PosttrainError):
    """No sandbox works on this machine; the message says what was tried. Programs never run without a sandbox."""

    exit_code = 2


class DoesNotFit(PosttrainError):
    """The run needs more memory or disk space than there is."""

    exit_code = 3


class GuardStop(PosttrainError):
    """A guard stopped the run, because continuing would have produced a wrong or useless model."""

    exit_code = 4


class RewardError(GuardStop):
    """Too many rewards are missing, not finite or misaligned: more than the stated limit."""


class NonFiniteError(GuardStop):
    """A loss or a gradient is not finite. Raised before the optimizer step, so the weights are unchanged."""


class AlarmStop(GuardStop):
    """An alarm fired, and the configuration says that the run then ends or waits for a person."""


class PublishError(GuardStop):
    """The sampler does not run the weights that were trained."""


class EngineError(GuardStop):
    """The sampling engines are gone and cannot be replaced. The message says which engine is lost and why,
    or which side waited for the other."""


class RankLost(PosttrainError):
    """A process of a training job has ended or does not answer. The job continues from its newest checkpoint."""

    exit_code = 5


class HandOverError(GuardStop):
    """A stage of a pipeline did not receive the model that an earlier stage trained."""


class CheckpointError(PosttrainError):
    """No checkpoint can be read or written. The message names the damaged file."""

    exit_code = 1


class StorageError(PosttrainError):
    """The storage behind the URL of a run cannot be read or written. The message says why. The local files are kept."""

    exit_code = 1


class ExportError(PosttrainError):
    """An export differs from the trained model or cannot be written. No files that look finished are left behind."""

    exit_code = 1
