"""Sleep and wake of a server that shares the trainer's GPU, with the proof that its memory is really given back.

    sleep    /sleep?level=2        requests are aborted; weights and cache are dropped, because new weights come anyway
    wake     /wake_up?tags=weights, then the weights are loaded and hashed, then /wake_up?tags=kv_cache

A server answers 200 even if it does not sleep, for example a CPU build or one that was started without
--enable-sleep-mode. So the server is asked before and after how much memory it holds, and the driver of the GPU is
asked how much is free. Level 2 may also lose memory outside of parameters and buffers. The hashes do not cover that
memory, but the probe after waking does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from posttrain.engines.vllm.client import Client, ServerError

GIB = 2**30
SLACK = GIB // 16
"""Bytes by which free memory may differ from what was given back: allocations are rounded, contexts grow."""


@dataclass(frozen=True)
class SharedDevice:
    """The GPU on which the trainer computes, as its own process sees it."""

    name: str
    """Its identifier in the driver, which is the same for all processes."""
    free: Callable[[], int]
    """Bytes of it that are free."""
    to_come: Callable[[], int] = lambda: 0
    """Bytes of these that the trainer will take and keep, such as moments of an optimizer before its first step."""


class Sleeper:
    """Puts one server to sleep and wakes it."""

    def __init__(self, client: Client, device: SharedDevice, weights: int) -> None:
        """`weights`: minimum bytes that the server needs to decode."""
        self.client, self.device, self.weights = client, device, weights
        self.asleep = False
        self.gives = 0
        """Bytes that it gave back when it last fell asleep."""

    async def sleep(self) -> None:
        """Put the server to sleep. Raises ServerError if it keeps memory."""
        before, free = await self._held(), self.device.free()
        if before < self.weights:
            raise ServerError(
                f"it could give back only {gib(before)} of the GPU, but its weights alone take "
                f"{gib(self.weights)}: start it with --enable-sleep-mode"
            )
        await self.client.call("/sleep", level="2", mode="abort")
        if not await self._sleeps():
            raise ServerError("it answers /sleep with 200, but does not sleep")
        after, risen = await self._held(), self.device.free() - free
        if after > SLACK:
            raise ServerError(f"it sleeps, but reports that it holds {gib(after)} of {gib(before)}")
        if before - risen > SLACK:
            raise ServerError(
                f"it sleeps, but {gib(before - risen)} of the {gib(before)} that it claims to have given back are "
                f"not free on the GPU ({gib(self.device.free())} are): it still holds them, or another process "
                "took them"
            )
        self.asleep, self.gives = True, before

    async def wake_weights(self) -> None:
        """Make room for weights. Its content is undefined until weights are loaded."""
        await self.client.call("/wake_up", tags="weights")

    async def wake_cache(self) -> None:
        """Make room for the cache. Raises ServerError if the server could not decode now: a lack of memory would end
        its process."""
        await self.client.call("/wake_up", tags="kv_cache")
        if await self._sleeps():
            raise ServerError("it was woken, but still sleeps")
        holds = await self._held()
        if self.gives - holds > SLACK:
            raise ServerError(f"it woke without its cache: it holds {gib(holds)} of the {gib(self.gives)} from before")
        self.asleep = False

    async def _held(self) -> int:
        return sum(one["bytes"] for one in await self.client.rpc("posttrain_held"))

    async def _sleeps(self) -> bool:
        return bool((await self.client.call("GET /is_sleeping"))["is_sleeping"])


async def wake_whoever_sleeps(client: Client) -> None:
    """Wake a server that sleeps because its trainer was killed. Its weights are undefined until new ones are loaded."""
    if (await client.call("GET /is_sleeping"))["is_sleeping"]:
        await client.call("/wake_up")


def gib(size: int) -> str:
    """
    >>> gib(3 * 2**29)
    '1.50 GiB'
    """
    return f"{size / GIB:.2f} GiB"
