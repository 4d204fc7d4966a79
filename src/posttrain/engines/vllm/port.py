"""A vLLM server as its driver sees it. Implements `EnginePort`, and `SleepingPort` on the trainer's GPU.

Each engine has a thread that speaks HTTP, so no method here waits for the server.

    driver's thread                      thread of this engine               server
    submit, interrupt, load   ---->      one task for each row     ---->     /inference/v1/generate
    answers (fileno)          <----      pieces, receipts          <----     streams

**Versions.** No request spans an update: before new weights, all requests are aborted, return the tokens that they
have, and continue from there afterwards. When a request ends, the server says which weights sampled which of its
tokens. Only then are the tokens passed on. If it reports anything but the proven version, the engine counts as lost.

**Proof.** The server reports the SHA-256 of every tensor that it decodes with, and the log-probabilities of the probe,
each by a request for one token. Rows continue after the probe, while the server hashes. Their tokens are held back
until all hashes are reported, and the driver compares both before it accepts a token.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import math
import os
import socket
import threading
import time
import traceback
import uuid
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from posttrain.engines.delivery import DeliveryProof
from posttrain.engines.port import (
    Answer,
    Asleep,
    EngineGone,
    Examined,
    GivenBack,
    Piece,
    Ready,
    RowName,
    Task,
    Token,
    WeightsLoaded,
)
from posttrain.engines.published import layout
from posttrain.engines.sampler import Digest, SamplingSettings, rows_together
from posttrain.engines.sampling import StopStrings
from posttrain.engines.vllm.client import GENERATE, LONGEST_ERROR, Client, NoAnswer, ServerError, drawn_by
from posttrain.engines.vllm.rows import Rows
from posttrain.engines.vllm.server import Launch, Server
from posttrain.engines.vllm.sleeping import SharedDevice, Sleeper, wake_whoever_sleeps
from posttrain.types import FinishReason

WATCHED = 0.5
"""Seconds between two checks of a server's process."""
LOOKS = 5
"""Number of checks for the death of a server that does not answer any more."""
AGAIN = 0.02
"""Seconds between two calls that abort requests which have not ended yet."""
ROWS_FOR_EACH = 2
"""Maximum open requests per row that a server decodes at a time. Each holds a connection and a file descriptor."""
ENDING = 5.0
"""Seconds for which `kill` waits for the engine's thread, which itself waits for nobody."""
NO_NUMBER = -9999.0
"""vLLM's placeholder for a log-probability that is missing or not finite."""
BOOT = Path("/proc/sys/kernel/random/boot_id")
"""File with an id of this machine that changes at each boot."""
TICK = 0.2
"""Seconds between two calls to a server that is starting."""


@dataclass(frozen=True, kw_only=True)
class ServerSetup:
    """What an engine has to know about the run."""

    launch: Launch | None
    """How to start its server; None if `url` names a running one."""
    url: str = ""
    tensors: Mapping[str, tuple[str, tuple[int, ...]]]
    """The tensors that the server decodes with: dtype and shape by name."""
    sampling: SamplingSettings
    tokenizer: PreTrainedTokenizerBase
    eos_ids: Sequence[int]
    vocabulary: int
    longest: int
    """Tokens of the longest row, including its prompt."""
    call_seconds: float
    """Maximum seconds for a call that is not a request for tokens."""
    patience: float
    """Seconds for which a server that was not started here may be unreachable."""
    shape: Mapping[str, Any] = field(default_factory=dict)
    """The settings of the model's config that decide what it computes."""
    device: SharedDevice | None = None
    """The trainer's GPU, if the server shares it."""

    @property
    def weights(self) -> int:
        """Bytes of the weights that the server decodes with."""
        return max((place.end for place in layout(self.tensors).values()), default=0)


@dataclass
class Flight:
    """A row in the server."""

    task: Task
    ids: list[int] = field(default_factory=list)
    """Tokens that were sampled here and passed on."""
    request: str = ""
    """The name of its request; empty if there is none."""
    runs: asyncio.Task[None] | None = None

    @property
    def drawn(self) -> tuple[int, ...]:
        return (*self.task.drawn_ids, *self.ids)


class VllmEngine:
    """One server, started with the run or attached to."""

    def __init__(
        self,
        name: str,
        setup: ServerSetup,
        files: Sequence[int],
        numbers: Mapping[int, int],
        proof: DeliveryProof,
        log: Path,
    ) -> None:
        """See `EngineProcess`."""
        self.name, self.setup, self.proof, self._log = name, setup, proof, log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._files, self._numbers = files, numbers
        self._stop, self._no_stop = (StopStrings(setup.tokenizer, stop) for stop in (setup.sampling.stop, ()))
        self._server = Server(setup.launch, log) if setup.launch else None
        self._client = Client(self._server.url if self._server else setup.url, setup.call_seconds)
        self._rows = Rows(self._client)
        self._generate = self._rows.generate
        self._sleeper = Sleeper(self._client, setup.device, setup.weights) if setup.device else None
        self._flights: dict[tuple[RowName, int], Flight] = {}
        self._version: int | None = None
        self._count = itertools.count()
        self._own = uuid.uuid4().hex
        """Part of the names of requests and weights; another run that uses this server has another."""
        self._places = asyncio.Semaphore(ROWS_FOR_EACH * rows_together(setup.sampling))
        self._open = asyncio.Event()
        """Set while requests may be made: weights are loaded, and no change is in progress."""
        self._loads = self._proven = 0
        """Number of loads so far, and number of loads for which all hashes are reported."""
        self._proof = asyncio.Event()
        """Set for a moment when the hashes of a load are complete."""
        self._weights = asyncio.Lock()
        """Held while weights are changed or must not change."""
        self._changes = 0
        """Number of loads and sleeps that run or wait for their turn."""
        self._examination: asyncio.Task[Any] | None = None
        """The examination that is asking about its tokens, if any."""
        self._ended = asyncio.Event()
        self._background = set[asyncio.Task[None]]()
        self._answers: list[Answer] = []
        self._gone = ""
        self._lock = threading.Lock()
        self._bell, self._heard = socket.socketpair()
        self._bell.setblocking(False)
        self._heard.setblocking(False)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    # --- the driver's thread -----------------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._heard.fileno()

    def submit(self, tasks: Sequence[Task]) -> None:
        """See `EnginePort`."""
        self._call(self._submit, tasks)

    def interrupt(self, rows: Sequence[tuple[RowName, int]]) -> None:
        """See `EnginePort`."""
        self._call(self._interrupt, rows)

    def load(self, version: int) -> None:
        """See `EnginePort`."""
        self._call(self._begin, self._load(version, self._numbers[version]))

    def sleep(self) -> None:
        """See `SleepingPort`."""
        self._call(lambda: self._begin(self._sleep()))

    def examine(self, number: int, tokens: Sequence[Token]) -> None:
        """See `Examinable`."""
        self._call(lambda: self._begin(self._examine(number, tokens)))

    def answers(self) -> list[Answer]:
        """See `EnginePort`."""
        with suppress(BlockingIOError):
            self._heard.recv(4096)
        with self._lock:
            found, self._answers = self._answers, []
            if self._gone and found:
                self._ring()  # earlier answers come first, then the news that it is gone
            elif self._gone:
                raise EngineGone(self._gone)
        return found

    def push(self) -> bool:
        """Return False: the event loop takes everything, so nothing is ever left to send."""
        return False

    def work(self) -> float:
        """See `EnginePort`."""
        return self._server.work() if self._server else time.monotonic()

    def kill(self) -> None:
        """See `EnginePort`. A server that was not started here stays, without the requests of this run."""
        if self._server:
            self._server.kill()
        self._call(self._ended.set)
        self._thread.join(ENDING)
        self._bell.close()
        self._heard.close()

    def _call(self, function: Any, *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: the engine is gone and has reported it
            self._loop.call_soon_threadsafe(function, *arguments)

    # --- the thread of this engine -----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._live())
        finally:
            self._loop.close()

    async def _live(self) -> None:
        if self._server:
            self._begin(self._watch(self._server))
        self._begin(self._start())
        await self._ended.wait()
        rest = [*self._background, *(flight.runs for flight in self._flights.values() if flight.runs)]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await self._rows.close()
        await self._client.close()

    async def _start(self) -> None:
        """Wait for the server, and refuse one whose settings would give its numbers another meaning."""
        began = time.monotonic()
        while True:
            try:
                await self._client.call("GET /weight_info")
                break
            except NoAnswer:
                if not self._server and time.monotonic() - began > self.setup.patience:
                    raise
                await asyncio.sleep(TICK)
        for facts in await self._client.rpc("posttrain_facts"):
            if wrong := self._wrong_with(facts):
                raise ServerError(wrong)
        await wake_whoever_sleeps(self._client)
        await self._client.rpc("posttrain_reset")
        await self._client.call("/init_weight_transfer_engine", {"init_info": {}})
        if not await self._rows.open():
            self._generate = self._client.generate
        self._say(Ready(tensors=self.setup.tensors, merged=True))

    def _wrong_with(self, facts: Mapping[str, Any]) -> str:
        """Return what is wrong with a server's settings; empty if nothing is."""
        if facts["logprobs_mode"] != "processed_logprobs":
            return (
                f"it reports {facts['logprobs_mode']}, which ignore temperature and truncation: start it with "
                "--logprobs-mode processed_logprobs"
            )
        if facts["vocabulary"] != self.setup.vocabulary:
            return f"its model has {facts['vocabulary']} tokens, but the trained one has {self.setup.vocabulary}"
        precision = next(iter(self.setup.tensors.values()))[0]
        if facts["dtype"] != precision:
            return f"it computes in {facts['dtype']}, but the run in {precision}: start it with --dtype {precision}"
        if facts["max_model_len"] < self.setup.longest:
            return (
                f"it takes rows of {facts['max_model_len']} tokens, but the run needs {self.setup.longest}: start "
                f"it with --max-model-len {self.setup.longest}"
            )
        shape = {name: value for name, value in facts["shape"].items() if name in self.setup.shape}
        if other := [name for name, value in shape.items() if value != self.setup.shape[name]]:
            return f"its model has {other[0]} = {shape[other[0]]}, but the trained one has {self.setup.shape[other[0]]}"
        if facts["machine"] != machine():
            return "it runs on another machine, but weights are handed over in memory that both must share"
        if self.setup.device and facts["device"] != self.setup.device.name:
            return (
                f"it is on {facts['device']}, but the trainer is on {self.setup.device.name}: set "
                "rollout.placement = beside"
            )
        if self.setup.device and not facts["sleeps"]:
            return "it shares the trainer's GPU and cannot sleep: start it with --enable-sleep-mode"
        if facts["workers"] != 1:
            return f"it has {facts['workers']} workers, and posttrain cannot check yet how it splits tensors among them"
        return ""

    async def _watch(self, server: Server) -> None:
        while not (death := server.death()):
            await asyncio.sleep(WATCHED)
        self._lose(death)

    # --- rows --------------------------------------------------------------------------------------------------------

    def _submit(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            flight = Flight(task)
            self._flights[task.row, task.attempt] = flight
            flight.runs = asyncio.ensure_future(self._guarded(self._decode(flight)))

    def _interrupt(self, rows: Sequence[tuple[RowName, int]]) -> None:
        for row, attempt in rows:
            flight = self._flights.pop((row, attempt), None)
            if flight is not None and flight.runs is not None:
                flight.runs.cancel()  # closes its stream, so that the server aborts it
                self._say(GivenBack(row=row, attempt=attempt))

    async def _decode(self, flight: Flight) -> None:
        """Decode a row to its end. Its tokens are passed on once the server has said which weights sampled them."""
        while True:
            async with self._places:
                if await self._decode_with_these_weights(flight):
                    del self._flights[flight.task.row, flight.task.attempt]
                    return

    async def _decode_with_these_weights(self, flight: Flight) -> bool:
        """Make one request, until the row ends (return True) or new weights come."""
        while not self._open.is_set():
            await self._open.wait()
        flight.request = number = f"{self._own}-{next(self._count)}"
        version, load = self._version, self._loads
        assert version is not None
        ids, logprobs, reason, spans = list[int](), list[float](), None, ()
        ended: FinishReason | None = None
        async for drawn in self._generate(self._request(flight, version, number)):
            self._say(Piece(row=flight.task.row, attempt=flight.task.attempt, version=version, ids=(), logprobs=()))
            if ended is None:
                for token, logprob in zip(drawn.ids, drawn.logprobs, strict=True):
                    ids.append(token)
                    logprobs.append(number_of(logprob))
                    ended = self._end_of(flight, ids)
                    if ended is not None:
                        break
                if ended == "stop":
                    await self._client.abort([number])
            reason, spans = drawn.reason, drawn.spans
        if reason is None:
            raise ServerError("a stream of tokens ended without a reason")
        while self._proven < load:
            await self._proof.wait()
        if wrong := self._wrong_in(spans, len(ids), version):
            raise ServerError(wrong)
        if ended is None and reason != "abort":
            raise ServerError(f"a row ended ({reason}) after {len(ids)} tokens, but none of them may end it")
        self._pass_on(flight, version, ids, logprobs, ended)
        flight.request = ""
        return ended is not None

    def _wrong_in(self, spans: Sequence[tuple[str, int, int]], count: int, version: int) -> str:
        """Return what is wrong with the server's report on the weights that sampled these tokens; empty if nothing."""
        if other := [label for label, _, _ in spans if label != self._label(version)]:
            return (
                f"weights {other[0]!r} sampled some tokens, while version {version} is loaded: does another "
                "program load weights?"
            )
        said = sum(end - start for _, start, end in spans)
        return f"some tokens carry no version: {said} of {count} are labelled" if said < count else ""

    def _label(self, version: int) -> str:
        return f"{self._own}:{version}"

    def _end_of(self, flight: Flight, ids: Sequence[int]) -> FinishReason | None:
        """Return why the row ends with the last of these ids, by the rules of the local sampler; None if it goes on."""
        whole = (*flight.drawn, *ids)
        if whole[-1] in self.setup.eos_ids:
            return "eos"
        stop = self._stop_of(flight)
        if stop and stop.completed([whole])[0]:
            return "stop"
        return "length" if len(whole) == flight.task.max_new_tokens else None

    def _stop_of(self, flight: Flight) -> StopStrings:
        return self._stop if flight.task.stops else self._no_stop

    def _pass_on(
        self, flight: Flight, version: int, ids: Sequence[int], logprobs: Sequence[float], ended: FinishReason | None
    ) -> None:
        flight.ids += ids
        if not ids and ended is None:
            return
        self._say(
            Piece(
                row=flight.task.row,
                attempt=flight.task.attempt,
                version=version,
                ids=tuple(ids),
                logprobs=tuple(logprobs),
                reason=ended,
                text=None if ended is None else self._stop_of(flight).text(flight.drawn, stopped=ended == "stop"),
            )
        )

    def _request(self, flight: Flight, version: int, number: str) -> dict[str, Any]:
        task, sampling = flight.task, self.setup.sampling
        temperature = sampling.temperature if task.temperature is None else task.temperature
        truncation = {"top_p": sampling.top_p, "top_k": sampling.top_k, "min_p": sampling.min_p}
        if task.top_p is not None:
            truncation = {"top_p": task.top_p, "top_k": 0, "min_p": 0.0}
        return self._asking(
            (*task.prompt_ids, *flight.drawn),
            version,
            max_tokens=task.max_new_tokens - len(flight.drawn),
            temperature=temperature,
            seed=seed_of(task, task.used + len(flight.drawn)),
            stop_token_ids=list(self.setup.eos_ids),
            logprobs=0,
            **(truncation if temperature else {}),
        ) | {"request_id": number}

    def _asking(self, ids: Sequence[int], version: int, **sampling: Any) -> dict[str, Any]:
        """Return a request. Its cache salt keeps it from using cache entries of older weights."""
        return {
            "token_ids": list(ids),
            "cache_salt": self._label(version),
            "sampling_params": {"detokenize": False, "ignore_eos": True, **sampling},
        }

    # --- weights -----------------------------------------------------------------------------------------------------

    async def _load(self, version: int, number: int) -> None:
        started = time.perf_counter()
        async with self._changing_weights():
            await self._take_weights(version, number, started)

    async def _take_weights(self, version: int, number: int, started: float) -> None:
        self._open.clear()
        client, asleep = self._client, self._sleeper if self._sleeper and self._sleeper.asleep else None
        if asleep:
            await asleep.wake_weights()
        else:
            await client.call("/pause", mode="abort", clear_cache="true")
        await self._all_have_left()
        places = layout(self.setup.tensors)
        file = self._files[number % len(self._files)]
        where = {
            "path": f"/proc/{os.getpid()}/fd/{file}",
            "places": {
                name: [str(place.dtype).removeprefix("torch."), list(place.shape), place.start]
                for name, place in places.items()
            },
        }
        await client.call("/start_weight_update")
        await client.call("/update_weights", {"update_info": where})
        await client.call("/finish_weight_update", {"weight_version": self._label(version)})
        if asleep:
            await asleep.wake_cache()
        await client.call("/resume")
        self._version = version
        told = await client.call("GET /weight_info")
        probe = await self._probe(version)
        self._loads += 1
        self._open.set()
        self._say(
            WeightsLoaded(
                version=version if told["weight_version"] == self._label(version) else -1,
                digests=await self._digests(),
                probe=probe,
                seconds=time.perf_counter() - started,
            )
        )
        self._proven = self._loads
        self._proof.set()
        self._proof.clear()

    async def _sleep(self) -> None:
        """Put the server to sleep. Rows that are submitted in the meantime wait here, as before an update. The server
        would keep their requests, and sample them with whatever weights it has when it wakes."""
        assert self._sleeper, "only a server on the trainer's GPU can be told to sleep"
        async with self._changing_weights():
            self._open.clear()
            await self._all_have_left()
            await self._sleeper.sleep()
            self._version = None
            self._say(Asleep(gave=self._sleeper.gives))

    @asynccontextmanager
    async def _changing_weights(self) -> AsyncIterator[None]:
        """Allow one change of weights at a time. Cancel an examination, which would ask about two versions."""
        self._changes += 1
        if self._examination is not None:
            self._examination.cancel()
        try:
            async with self._weights:
                yield
        finally:
            self._changes -= 1

    async def _all_have_left(self) -> None:
        """Wait until all requests have returned their tokens, before new weights are loaded."""
        until = time.monotonic() + self.setup.call_seconds
        while names := [flight.request for flight in self._flights.values() if flight.request]:
            if time.monotonic() > until:
                raise ServerError(f"requests did not end {self.setup.call_seconds:.0f} s after they were aborted")
            await self._client.abort(names)  # repeatedly: a pause does not end requests that arrive after it
            await asyncio.sleep(AGAIN)

    async def _probe(self, version: int) -> list[list[float]]:
        """Return the server's log-probabilities of the proof's tokens, each requested as the next token."""
        proof = self.proof
        return await asyncio.gather(
            *(
                asyncio.gather(*(self._logprob((*prompt, *ids[:at]), ids[at], version) for at in range(len(ids))))
                for prompt, ids in zip(proof.prompt_ids, proof.completion_ids, strict=True)
            )
        )

    async def _examine(self, number: int, tokens: Sequence[Token]) -> None:
        """Report the server's hashes, and the tokens' log-probabilities with an empty cache and with the rows' cache.

        If the server does not answer in time, report nothing: its rows come first, and show whether it is lost."""
        with suppress(ServerError, TimeoutError):
            async with asyncio.timeout(self.setup.call_seconds), self._weights:
                version = self._version
                if version is None or self._changes:
                    return
                digests = await self._digests()
                if self._changes:
                    return
                self._examination = asyncio.current_task()
                try:
                    fresh = await self._ask(tokens, version, f"{self._label(version)}:{uuid.uuid4().hex}")
                    cached = await self._ask(tokens, version, self._label(version))
                finally:
                    self._examination = None
                self._say(Examined(number=number, version=version, digests=digests, fresh=fresh, cached=cached))

    async def _ask(self, tokens: Sequence[Token], version: int, salt: str) -> tuple[float, ...]:
        """Return the log-probability of each token. If not all are answered, abort the remaining requests."""
        names = [f"{self._own}-{next(self._count)}" for _ in tokens]
        asked = [
            asyncio.ensure_future(self._logprob(ids, token, version, salt=salt, name=name))
            for (ids, token), name in zip(tokens, names, strict=True)
        ]
        answered = False
        try:
            found = tuple(await asyncio.gather(*asked))
            answered = True
            return found
        finally:
            for one in asked:
                one.cancel()
            if not answered and not self._ended.is_set():
                await self._client.abort(names)

    async def _digests(self) -> dict[str, Digest]:
        found, [part] = dict[str, Digest](), await self._client.rpc("posttrain_digests", begin=True)
        while True:
            found |= {name: Digest(getattr(torch, dtype), sha) for name, (dtype, sha) in part["digests"].items()}
            if part["done"]:
                return found
            [part] = await self._client.rpc("posttrain_digests")

    async def _logprob(self, ids: Sequence[int], token: int, version: int, *, salt: str = "", name: str = "") -> float:
        """Return the log-probability of one token as the next one, without truncation. `salt` replaces the version's
        salt, and `name` is the name by which the request can be aborted."""
        request = self._asking(
            ids,
            version,
            max_tokens=1,
            temperature=self.proof.temperature or 1.0,
            logprobs=2,  # vLLM shows the first of these for the sampled token
            logprob_token_ids=[token, token],
        )
        request |= ({"cache_salt": salt} if salt else {}) | ({"request_id": name} if name else {})
        answer = await self._client.call(GENERATE, request)
        if [len(drawn.ids) for drawn in drawn_by(answer, self._client.url)] != [1]:
            raise ServerError(f"{GENERATE} was asked for one token, but answered {str(answer)[:LONGEST_ERROR]}")
        content = answer["choices"][0]["logprobs"]["content"][0]
        for one in (content, *content.get("top_logprobs", ())):
            if one["token_id"] == token:
                return number_of(one["logprob"])
        raise ServerError(f"{GENERATE} says nothing about the requested token {token}")

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(self._guarded(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except NoAnswer as error:
            await self._death_may_come()
            self._lose(str(error))
        except ServerError as error:
            self._lose(str(error))
        except Exception as error:
            with self._log.open("a") as file:
                traceback.print_exc(file=file)
            self._lose(f"{type(error).__name__}: {error}")

    async def _death_may_come(self) -> None:
        """Wait for the process to end: a connection breaks a moment earlier, and its death is the better cause."""
        for _ in range(LOOKS):
            if self._server is None or self._server.death():
                return
            await asyncio.sleep(TICK)

    def _say(self, *answers: Answer) -> None:
        with self._lock:
            self._answers += answers
        self._ring()

    def _lose(self, cause: str) -> None:
        with self._lock:
            death = self._server.death() if self._server else ""
            self._gone = self._gone or death or cause
        self._ring()

    def _ring(self) -> None:
        with suppress(BlockingIOError, OSError):
            self._bell.send(b"\0")


def machine() -> str:
    """Return an id of this machine that changes at each boot."""
    return BOOT.read_text().strip() if BOOT.exists() else ""


def number_of(logprob: float | None) -> float:
    """Return a log-probability. Servers write one that is not finite as null, or as less than any can be."""
    return math.nan if logprob is None or logprob <= NO_NUMBER else logprob


def seed_of(task: Task, drawn: int) -> int:
    """Return a seed for this row and the position from which it continues."""
    named = f"{task.seed} {task.stream} {drawn}".encode()
    return int.from_bytes(hashlib.sha256(named).digest()[:4], "big") // 2
