"""Uploads of a run whose output is a URL: the run uploads its files while it trains, and its error if it fails."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from posttrain.config.urls import is_url
from posttrain.errors import ConfigError, PosttrainError, StorageError
from posttrain.shown import shown

if TYPE_CHECKING:
    from posttrain.config import RunConfig
    from posttrain.ranks.environment import Place
    from posttrain.report.terminal import TerminalView
    from posttrain.store.run_store import RunStore


def carry(config: RunConfig, store: RunStore, view: TerminalView, *, new: bool) -> None:
    """Start uploading if the output is a URL.

    Raises ConfigError if the run may not write there, or if another process writes there.
    """
    if config.output is None or not is_url(config.output):
        return

    def say(message: str) -> None:
        with suppress(PosttrainError):  # a full disk is reported by the part that trains
            store.event("warning", message, about="output")
        view.event("warning", message)

    store.carrier.open(config.output, say, keep=config.checkpoint.keep, new=new)


def refuse_several_machines(output: str | None, place: Place) -> None:
    """Raise ConfigError for ranks that may not see each other's files: they write one checkpoint together."""
    if output is not None and is_url(output) and place.beside != place.size:
        raise ConfigError(
            given=f"output = {output} with {place.size} ranks, and {place.beside or 'an unknown number'} of them on "
            "this machine: all ranks write one checkpoint together before it goes to its URL",
            allowed="ranks on one machine, or a folder that all machines can reach",
            fix="Set output to a folder on a shared file system, or train on one machine.",
        )


def refuse_url_of_ranks(run: str, place: Place | None) -> None:
    """Raise ConfigError if each process of a job would download the run from its URL."""
    if place is not None and is_url(run):
        raise ConfigError(
            given=f"{run} in a job of {place.size} processes, each of which would fetch it",
            allowed="one process, which fetches the run and starts the ranks",
            fix=f"`posttrain resume {shown(run)}` without torchrun or srun.",
        )


def carry_last_words(store: RunStore, error: BaseException) -> None:
    """Upload the last files of a run that ends with an error.

    If the upload fails, or Ctrl-C ends the wait for it, a note on the error says so.
    """
    if store.has_begun and not isinstance(error, StorageError):
        try:
            store.carrier.finish(interrupted=isinstance(error, KeyboardInterrupt))
        except PosttrainError as failed:
            error.add_note(str(failed))
        except KeyboardInterrupt:
            error.add_note(str(store.carrier.incomplete()))
