"""How long ranks take to tell each other what they must: rings, by latency and bandwidth.

A collective of n ranks over B bytes in all. Each rank takes in, in so many steps along the ring:

    all-gather        (n - 1) / n B      n - 1        every rank ends with all B
    reduce-scatter    (n - 1) / n B      n - 1        every rank ends with the sum of its part
    all-reduce      2 (n - 1) / n B    2 (n - 1)      reduce-scatter, then all-gather
    send                          B      1            from one device to another

    seconds = start + steps inside machines x a_inside + steps between them x a_across + bytes taken in / rate

Of the n - 1 steps, machines - 1 go from one machine to the next. Rings enter a machine through the network cards of all
of its ranks, so what a group with k ranks on a machine takes in comes at min(link, k x network). NCCL sends by one of
three protocols, of which short messages want another one than long ones: the fastest counts. Latencies and the share
of the bandwidth that a protocol leaves are those of NCCL's own model (hardware.yaml has the source).
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
    """One kind of message, and how often it is exchanged."""

    kind: Kind
    bytes: float
    """Bytes of the whole that is gathered, summed or sent, each time."""
    group: Group
    times: float = 1.0
    hidden: bool = False
    """It goes on while the ranks compute: only what outlasts the computation is waited for."""

    def __mul__(self, times: float) -> Collective:
        return replace(self, times=self.times * times)

    @property
    def received(self) -> float:
        """Bytes that one rank takes in, all times together."""
        n = self.group.ranks
        share = {"all-reduce": 2 * (n - 1) / n, "send": 1.0}.get(self.kind, (n - 1) / n)
        return self.times * share * self.bytes

    @property
    def across(self) -> float:
        """The part of `received` that comes through the network card of a rank."""
        return self.received / self.group.inside if self.group.machines > 1 else 0.0

    @property
    def steps(self) -> tuple[int, int]:
        """Steps of one time: inside machines, between them."""
        rounds = 2 if self.kind == "all-reduce" else 1
        across = self.group.machines - 1
        return rounds * (self.group.ranks - 1 - across), rounds * across

    def seconds(self, hardware: Hardware) -> float:
        """All times together, one after another."""
        return sum(self.latency_and_bandwidth(hardware))

    def latency_and_bandwidth(self, hardware: Hardware) -> tuple[float, float]:
        """Seconds of both, by the protocol that is fastest."""
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
    """One of NCCL's: seconds, and the share of the bandwidth that carries data."""

    start: float
    inside: float
    across: float
    share: float


@cache
def protocols() -> tuple[Protocol, ...]:
    """Those of hardware.yaml."""
    rows = table()["protocols"].values()
    return tuple(
        Protocol(
            start=1e-6 * one["start"], inside=1e-6 * one["inside"], across=1e-6 * one["across"], share=one["share"]
        )
        for one in rows
    )


def told(kind: Kind, size: float, group: Group, times: float = 1.0, *, hidden: bool = False) -> tuple[Collective, ...]:
    """One collective; none for a rank that is alone, or has nothing to say."""
    if group.ranks == 1 or not size or not times:
        return ()
    return (Collective(kind=kind, bytes=size, group=group, times=times, hidden=hidden),)


@dataclass(frozen=True, kw_only=True)
class Together:
    """All collectives of one kind and group, of one rank."""

    kind: Kind
    group: Group
    times: float
    received: float
    latency: float
    """Seconds."""
    bandwidth: float
    """Seconds."""


def together(messages: Iterable[Collective], hardware: Hardware) -> list[Together]:
    """By kind and group, in the order in which they first come."""
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
