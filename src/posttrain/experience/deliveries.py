"""Delivery of weights to engines through shared memory; they count as loaded only after the engine's proof."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from os import close
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from posttrain.data.collate import collate
from posttrain.engines.delivery import DeliveryProof
from posttrain.engines.port import WeightsLoaded
from posttrain.engines.published import Publications, Published, new_files
from posttrain.engines.sampler import Digest
from posttrain.engines.weights import merged_tensors, named_tensors
from posttrain.errors import PosttrainError
from posttrain.models.footprint import PUBLICATIONS
from posttrain.models.policy import Forward
from posttrain.types import Batch, Max, Metrics, Min

if TYPE_CHECKING:
    from posttrain.experience.driver import Driver


PROBE_PROMPTS = 4
"""Number of prompts on which each delivery of weights is proved."""


class TrainerScores:
    """The trainer's side of the delivery proof: log-probabilities that `forward` gives to fixed completions."""

    def __init__(self, forward: Forward, pad_id: int) -> None:
        self.forward, self.pad_id = forward, pad_id

    def __call__(
        self, prompt_ids: Sequence[Sequence[int]], completion_ids: Sequence[Sequence[int]], *, temperature: float
    ) -> list[list[float]]:
        assert temperature == self.forward.temperature, "the probe is scored at the temperature of the training"
        rows = list(zip(prompt_ids, completion_ids, strict=True))
        tokens, mask_BT = collate(rows, self.pad_id)
        batch = Batch(completion_mask_BT=mask_BT, groups_B=torch.arange(len(rows)), tokens=tokens)
        logprobs_BT = self.forward(batch).logprobs_BT.cpu()
        return [logprobs_BT[row, mask_BT[row]].tolist() for row in range(len(rows))]


@dataclass
class Deliveries:
    """Publishes weights to engines through shared memory, and checks the engines' reports on them."""

    model: nn.Module
    proof: DeliveryProof
    scores: TrainerScores
    files: Sequence[int] = field(default_factory=new_files)
    """Files whose memory holds the publications; empty if they are stored elsewhere."""
    place: Callable[[Mapping[str, tuple[str, Sequence[int]]]], Publications] | None = None
    """Makes room for publications of tensors with these dtypes and shapes; None: use the memory of `files`."""
    numbers: dict[int, int] = field(default_factory=dict)
    """The publication number of each version."""
    give_room: Callable[[], None] = lambda: None
    """Returns unused memory of the trainer to its device, before engines wake there."""

    def __post_init__(self) -> None:
        self.driver: Driver | None = None
        self._published: Publications | None = None
        self._expected: dict[int, tuple[dict[str, Digest], list[list[float]]]] = {}
        self._worst = 0.0
        self._last: int | None = None
        """The last version of the run, if it has been trained but not published yet."""

    def __call__(self, version: int) -> Metrics:
        """Publish the weights of `version`; see `Publisher`. The first publication waits until an engine is ready.

        Engines load the weights later, so `publish/probe_max_difference` is the largest since the last publication.
        """
        assert self.driver is not None, "a driver is made for these deliveries"
        if self._published is None:
            self.give_room()
            self.driver.launch()
            ready = self.driver.wait_for_engine()
            self._published = (self.place or partial(Published, self.files, write=True))(ready.tensors)
            self._merged = ready.merged
            return self._publish(version)
        self.driver.trained(version)
        if version >= self.driver.limits.last_version:
            self._last = version
            return {}
        return self._publish(version) if self.driver.may_publish(version) else {}

    def newest(self) -> None:
        """Publish what is not published yet: the run's first weights, or its last. No training samples use these, so
        their publication waits until the run is on file and evaluates them."""
        assert self.driver is not None, "a driver is made for these deliveries"
        if self._published is None:
            self(0)
        elif self._last is not None and self.driver.may_publish(self._last):
            self._publish(self._last)
        self._last = None

    def _publish(self, version: int) -> Metrics:
        assert self.driver is not None
        assert self._published is not None
        number = 1 + max(self.numbers.values(), default=-1)
        named = merged_tensors if self._merged else named_tensors
        digests = self._published.write(number, named(self.model))
        trained = self._score(version)
        self.numbers[version] = number
        self._expected[version] = digests, trained
        for old in sorted(self.numbers)[:-3]:
            del self.numbers[old], self._expected[old]
        self.give_room()
        self.driver.published(version)
        worst, self._worst = self._worst, 0.0
        return {"publish/tensors_compared": Min(float(len(digests))), "publish/probe_max_difference": Max(worst)}

    def prove(self, loaded: WeightsLoaded) -> str:
        """Return what is wrong with the weights that an engine has loaded; empty if they are the trained ones."""
        if loaded.version not in self._expected:
            return f"it says that it loaded version {loaded.version}, which was never published"
        if wrong := self.wrong_weights(loaded.version, loaded.digests):
            return wrong
        _, trained = self._expected[loaded.version]
        try:
            self._worst = max(self._worst, self.proof.compare(trained, loaded.probe, loaded.version))
        except PosttrainError as error:
            return error.given
        return ""

    def wrong_weights(self, version: int, held: Mapping[str, Digest]) -> str:
        """Return what is wrong with an engine's tensors for a version; empty if they are the trained ones."""
        expected, _ = self._expected[version]
        if more := sorted(held.keys() - expected.keys()):
            return f"it decodes with {more[0]}, which is not trained ({len(more)} tensors)"
        if wrong := [name for name, one in expected.items() if held.get(name) != one]:
            return f"{wrong[0]} and {len(wrong) - 1} other tensors differ from version {version}"
        return ""

    def other_versions(self, version: int) -> dict[int, Iterable[tuple[str, Tensor]]]:
        """Return the tensors of the other versions that are still in memory, the newest version first."""
        if self._published is None:
            return {}
        kept = sorted(self.numbers, reverse=True)[:PUBLICATIONS]
        return {one: self._published.read(self.numbers[one]) for one in kept if one != version}

    @torch.no_grad()
    def _score(self, version: int) -> list[list[float]]:
        trained = self.scores(self.proof.prompt_ids, self.proof.completion_ids, temperature=self.proof.temperature)
        self.proof.compare(trained, trained, version)  # raises if a number is not finite
        return trained

    def close(self) -> None:
        for file in self.files:
            with suppress(OSError):
                close(file)
