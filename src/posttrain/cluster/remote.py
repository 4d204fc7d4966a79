"""A process on a node, as seen by the process that started it. Implements `Child`.

Two threads carry bytes between the caller's socket and the actor. Each thread makes one call at a time, so that
messages stay in order. No call of the caller waits for the cluster.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayActorError, RayError

from posttrain.cluster.host import CHUNK, Said
from posttrain.cluster.weights import PutWeights

STARTS = 300.0
"""Seconds during which an actor is restarted if it is lost before its first message. Ray notices a lost node late, and
moves its bundles to another node even later."""
AGAIN = 1.0
"""Seconds between two starts."""
FINISHED = 5.0
"""Seconds that an actor gets to end its process."""


class RemoteChild:
    """A process in an actor of its own."""

    delay = 1.0

    starts = STARTS
    """See `STARTS`."""

    def __init__(self, place: Callable[[], Any], output: int, lost: Callable[[str], None] = lambda why: None) -> None:
        """`place` creates the actor. The printed output of the process goes to `output`. `lost` is called with the
        reason if the actor is gone without having been ended."""
        self._place, self._output, self._lost = place, os.dup(output), lost
        self.channel, self._inner = socket.socketpair()
        self.channel.setblocking(False)
        self._actor: Any = None
        self._work = 0.0
        self._end: int | str | None = None
        self._killed = self._heard = False
        self._there, self._over = threading.Event(), threading.Event()
        """Whether the actor has answered, and whether no more output will come."""
        self._errands: queue.SimpleQueue[Callable[[Any], Any]] = queue.SimpleQueue()
        """Requests that the actor gets before the next message."""
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        """Signals to be sent to the process. A signal handler may add one at any moment."""
        self._threads = [
            threading.Thread(target=self._receive, name="from a node", daemon=True),
            threading.Thread(target=self._send, name="to a node", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def there(self) -> bool:
        """See `Child`."""
        return self._there.is_set()

    def end(self, patience: float = 0.0) -> int | str | None:
        """See `Child`."""
        self._over.wait(patience)
        return self._end

    def signal(self, number: int) -> None:
        """See `Child`. If the process has not started yet, the signal waits for it."""
        self._signals.put(number)
        if self.there:
            self._pass_on()

    def work(self) -> float:
        """See `Child`."""
        return self._work

    def kill(self) -> None:
        """See `Child`. A thread of this object ends the actor."""
        self._killed = True
        self._there.set()
        for one in (self.channel, self._inner):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self.channel.close()

    @property
    def wanted(self) -> bool:
        """Is the process neither killed nor ended?"""
        return not self._killed and not self._over.is_set()

    @property
    def lives(self) -> bool:
        """Do the threads that serve the actor still run?"""
        return any(thread.is_alive() for thread in self._threads)

    def join(self) -> None:
        """Wait until the actor is gone."""
        for thread in self._threads:
            thread.join(2 * FINISHED)

    # --- threads -----------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        """Carry output from the actor to the caller, until no more comes or the caller has closed its socket."""
        try:
            said = self._started()
            while said is not None and not self._killed:
                self._tell(said)
                if said.closed:
                    self._end = said.end
                    break
                said = self._ask()
        except RayError as error:
            self._end = gone(error)
            if not self._killed:
                self._lost(self._end)
        except OSError:
            pass  # the caller has closed its socket
        finally:
            self._over.set()
            self._there.set()
            with suppress(OSError):
                self._inner.shutdown(socket.SHUT_WR)
            self._finish()
            os.close(self._output)

    def _started(self) -> Said | None:
        """Start the actor, again if it is lost early, and return its first output; None if the process was killed."""
        began = time.monotonic()
        while not self._killed:
            self._actor = self._place()
            try:
                said = self._ask()
                self._heard = said is not None
                self._there.set()
                self._pass_on()
                return said
            except RayActorError as error:
                if self._killed or not was_lost(error) or time.monotonic() - began > self.starts:
                    raise
            time.sleep(AGAIN)
        return None

    def _ask(self) -> Said | None:
        """The next output of the actor; None if the process was killed. An actor without room never answers."""
        asked: Any = self._actor.said.remote()
        while not self._killed:
            ready, _ = ray.wait([asked], timeout=AGAIN)
            if ready:
                return ray.get(asked)
        return None

    def _pass_on(self) -> None:
        """Send the waiting signals. Called when a signal is added, and when the process has started."""
        with suppress(queue.Empty):
            while self.wanted:
                self._actor.signal.remote(self._signals.get_nowait())

    def _tell(self, said: Said) -> None:
        self._work = said.work
        if said.printed:
            os.write(self._output, said.printed)
        if said.channel:
            self._inner.sendall(said.channel)

    def _send(self) -> None:
        """Carry bytes from the caller to the actor."""
        self._there.wait()
        try:
            while not self._over.is_set() and (data := self._inner.recv(CHUNK)):
                while not self._errands.empty():
                    self._errands.get()(self._actor)
                ray.get(self._actor.hear.remote(data))
        except RayError as error:
            self._end = gone(error) if self._end is None else self._end
            with suppress(OSError):
                self._inner.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the caller has closed its socket
        finally:
            self._over.wait()
            self._inner.close()

    def _finish(self) -> None:
        """End the process, and then the actor, whether or not the actor answers."""
        if self._actor is None:
            return
        with suppress(RayError):
            if self._heard and not isinstance(self._end, str):
                ray.wait([self._actor.finish.remote()], timeout=FINISHED)
            ray.kill(self._actor)


class RemoteEngine(RemoteChild):
    """An engine on a node. Implements `EngineChild`."""

    def __init__(self, place: Callable[[], Any], output: int, weights: Callable[[], PutWeights]) -> None:
        """`weights` gives the publications of the run, once there are some."""
        super().__init__(place, output)
        self._weights = weights

    def bring(self, number: int) -> None:
        """See `EngineChild`."""
        weights = self._weights()
        size, buckets = weights.size, weights.buckets(number)
        self._errands.put(lambda actor: ray.get(actor.bring.remote(size, buckets)))


class RemoteRank(RemoteChild):
    """A rank on a node. Implements `RankProcess`."""

    starts = 0.0  # the other ranks would not find a rank that restarts on another node

    def end(self, patience: float = 0.0) -> int | str | None:
        """See `RankProcess`."""
        end = super().end(patience)
        return "it closed its output but did not end" if end is None and self._over.is_set() else end


def was_lost(error: RayActorError) -> bool:
    """Did an actor end with its node or its interpreter, and not because of its own error?"""
    return not (isinstance(error, ActorDiedError) and "error raised in its creation task" in str(error))


def gone(error: RayError) -> str:
    """A message about an actor that cannot be reached."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    why = next((line for line in reversed(lines) if line.startswith("The actor") or "Error" in line), lines[0])
    return f"its actor is gone ({type(error).__name__}: {why.partition('. ')[0][:300]})"
