"""Ranks in processes of their own, connected by torch.distributed.

There are three process groups, because they wait for different reasons:

    default    collectives of FSDP2 on the device: a missing rank is noticed within the deadline
    host       numbers and records in main memory during a command: the same deadline
    control    announcements: followers may wait for the next one for hours, while the first rank samples; the first
               rank waits until the others have received it, at most until the deadline
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from posttrain.errors import RankLost
from posttrain.heartbeat import beat
from posttrain.ranks.agreement import Company
from posttrain.ranks.environment import MEETING, Place, meeting_of_slurm

T = TypeVar("T")
PATIENCE = timedelta(days=30)
"""Longest wait of followers between two announcements. The end of the leader's process ends the wait immediately."""
_LOST = ("Timed out", "timed out", "Connection closed", "Connection reset", "Broken pipe", "Connection refused", "NCCL")


class SomeRanks:
    """A set of ranks with a process group in main memory. Implements `Company`."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.rank, self.size = group, group.rank(), group.size()

    def gather(self, value: T) -> list[T]:
        """See `Company`."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.group)
        return found

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """See `Company`."""
        for tensor in tensors:
            dist.all_reduce(tensor, group=self.group)

    def from_first(self, value: T) -> T:
        """See `Company`."""
        box: list[Any] = [value]
        dist.broadcast_object_list(box, group_src=0, group=self.group)
        return box[0]


class ProcessRanks(SomeRanks):
    """All ranks of a job. Implements `Ranks`."""

    def __init__(self, place: Place, deadline: float, *, on_cpu: bool = False) -> None:
        """`deadline`: seconds after which a rank that does not answer counts as lost. `on_cpu`: do not use GPUs."""
        self.place, self.deadline = place, deadline
        self.inside = place.rank > 0
        """Whether this rank is inside an announced operation, or is a follower. It then announces nothing."""
        self.broken = False
        """Whether an announced operation has failed on this rank. The other ranks are still in the middle of it."""
        if on_gpus := torch.cuda.is_available() and not on_cpu:
            torch.cuda.set_device(place.local % torch.cuda.device_count())
        meeting = meeting_of_slurm(os.environ)
        os.environ.update({name: meeting[name] for name in MEETING if name in meeting})
        wait = timedelta(seconds=deadline)
        if "MASTER_ADDR" in os.environ and os.environ["MASTER_ADDR"] in ("127.0.0.1", "localhost"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpus else "gloo", rank=place.rank, world_size=place.size, timeout=wait
        )
        super().__init__(_group(wait))
        self._control = _group(PATIENCE if self.rank else wait)
        self._company = cache(self._of_lines)
        self.gather(None)  # a connection that cannot work fails here, and is not taken for a lost rank later

    @contextmanager
    def together(self, command: str, *args: Any) -> Iterator[bool]:
        """See `Ranks`."""
        if self.inside:
            yield False
            return
        self.inside = True
        try:
            with lost_ranks(self.deadline):
                dist.broadcast_object_list([(command, args)], src=0, group=self._control)
                yield True
        except BaseException:
            self.broken = True
            raise
        finally:
            self.inside = False

    def follow(self) -> tuple[str, tuple[Any, ...]]:
        """Wait for the next announcement, and return its command and arguments."""
        box: list[Any] = [None]
        with lost_ranks(self.deadline):
            dist.broadcast_object_list(box, src=0, group=self._control)
        beat("a command was announced")
        return box[0]

    def across(self, neighbours: int) -> Company:
        """See `Ranks`."""
        return self if neighbours == 1 else self._company(neighbours, across=True)

    def beside(self, neighbours: int) -> Company:
        """See `Ranks`."""
        return self._company(neighbours, across=False)

    def _of_lines(self, neighbours: int, *, across: bool) -> SomeRanks:
        lines = torch.arange(self.size).view(-1, neighbours)
        return SomeRanks(own_group((lines.T if across else lines).tolist(), timedelta(seconds=self.deadline), "gloo"))

    def close(self) -> None:
        """Leave the job."""
        dist.destroy_process_group()


def _group(timeout: timedelta) -> dist.ProcessGroup:
    """A process group of all ranks in main memory."""
    made = dist.new_group(backend="gloo", timeout=timeout)
    assert isinstance(made, dist.ProcessGroup), "every rank is in it"
    return made


def own_group(lines: list[list[int]], timeout: timedelta, backend: str | None = None) -> dist.ProcessGroup:
    """The process group, among the groups `lines`, that this rank belongs to. All ranks create all groups."""
    own, _ = dist.new_subgroups_by_enumeration(lines, timeout=timeout, backend=backend)
    assert isinstance(own, dist.ProcessGroup), "every rank is in one of them"
    return own


@contextmanager
def lost_ranks(deadline: float) -> Iterator[None]:
    """Turn PyTorch's errors about a missing rank into RankLost."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and not any(text in str(error) for text in _LOST):
            raise
        raise RankLost(
            given=f"another rank of the job has ended, or has not answered for {deadline:g} s "
            f"({next(iter(str(error).splitlines()), '')})",
            allowed="ranks that answer within train.rank_deadline",
            fix="If the ranks were only slow, raise train.rank_deadline.",
        ) from error
