"""The time of communication between ranks: ring collectives, by latency and bandwidth.

For a collective of n ranks over B bytes in total, each rank receives these bytes in these steps along the ring:

    all-gather        (n - 1) / n B      n - 1        every rank ends with all B
    reduce-scatter    (n - 1) / n B      n - 1        every rank ends with the sum of its part
    all-reduce      2 (n - 1) / n B    2 (n - 1)      reduce-scatter, then all-gather
    send                          B      1            from one device to another

    seconds = start + steps inside machines x a_inside + steps between them x a_across + received bytes / rate

Of the n - 1 steps, machines - 1 go from one machine to the next. Rings enter a machine through the network cards of all
of its ranks, so a group with k ranks per machine receives at min(link, k x network). NCCL has three protocols; which is
fastest depends on the message size, and the fastest one counts. The latencies of the protocols and their shares of the
bandwidth come from NCCL's own model (hardware.yaml has the source).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from posttrain.lab.plan.hardware import Hardware, table
from posttrain.lab.plan.mesh import Group

Kind = Literal["all-gather", "reduce-scatter", "all-reduce", "send"]


@dataclass(frozen=True, kw_only=True)
class Collective:
    """A collective operation, and how often it runs."""

    kind: Kind
    bytes: float
    """Total bytes that are gathered, summed or sent, each time."""
    group: Group
    times: float = 1.0
    hidden: bool = False
    """True if it overlaps with computation. Ranks then wait only for what takes longer than computing."""

    def __mul__(self, times: float) -> Collective:
        return replace(self, times=self.times * times)

    @property
    def received(self) -> float:
        """Bytes that one rank receives, over all times."""
        n = self.group.ranks
        share = {"all-reduce": 2 * (n - 1) / n, "send": 1.0}.get(self.kind, (n - 1) / n)
        return self.times * share * self.bytes

    @property
    def across(self) -> float:
        """The bytes of `received` that come through a rank's network card."""
        return self.received / self.group.inside if self.group.machines > 1 else 0.0

    @property
    def steps(self) -> tuple[int, int]:
        """Steps of one run: (inside machines, between machines)."""
        rounds = 2 if self.kind == "all-reduce" else 1
        across = self.group.machines - 1
        return rounds * (self.group.ranks - 1 - across), rounds * across

    def seconds(self, hardware: Hardware) -> float:
        """Return the seconds of all runs, one after the other."""
        return sum(self.latency_and_bandwidth(hardware))

    def latency_and_bandwidth(self, hardware: Hardware) -> tuple[float, float]:
        """Return (seconds of latency, seconds of bandwidth) for the fastest protocol."""
        rate = hardware.link
        if self.group.machines > 1:
            rate = min(rate, self.group.inside * hardware.network)
        inside, across = self.steps
        found = (
            (
                self.times * (one.start + inside * one.inside + across * one.across),
                self.received / (rate * one.share),
            )
            for one in protocols()
        )
        return min(found, key=sum)


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """A protocol of NCCL: its latencies in seconds, and the share of the bandwidth that carries data."""

    start: float
    inside: float
    across: float
    share: float


@cache
def protocols() -> tuple[Protocol, ...]:
    """Return the protocols in hardware.yaml."""
    rows = table()["protocols"].values()
    return tuple(
        Protocol(
            start=1e-6 * one["start"], inside=1e-6 * one["inside"], across=1e-6 * one["across"], share=one["share"]
        )
        for one in rows
    )


def told(kind: Kind, size: float, group: Group, times: float = 1.0, *, hidden: bool = False) -> tuple[Collective, ...]:
    """Return one collective. Empty for a group of one rank, or without bytes or runs."""
    if group.ranks == 1 or not size or not times:
        return ()
    return (Collective(kind=kind, bytes=size, group=group, times=times, hidden=hidden),)


@dataclass(frozen=True, kw_only=True)
class Together:
    """All collectives of one kind and group, for one rank."""

    kind: Kind
    group: Group
    times: float
    received: float
    latency: float
    """Time due to latency, in seconds."""
    bandwidth: float
    """Time due to bandwidth, in seconds."""


def together(messages: Iterable[Collective], hardware: Hardware) -> list[Together]:
    """Sum collectives by kind and group, in the order of their first occurrence."""
    found: dict[tuple[Kind, Group], Together] = {}
    for one in messages:
        latency, bandwidth = one.latency_and_bandwidth(hardware)
        before = found.get((one.kind, one.group))
        found[one.kind, one.group] = Together(
            kind=one.kind,
            group=one.group,
            times=one.times + (before.times if before else 0.0),
            received=one.received + (before.received if before else 0.0),
            latency=latency + (before.latency if before else 0.0),
            bandwidth=bandwidth + (before.bandwidth if before else 0.0),
        )
    return list(found.values())
