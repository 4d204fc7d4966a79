"""A server with the protocol of vLLM that decodes with transformers; a subclass does one thing wrong.

It runs in a thread of this process, and answers the calls of an engine.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import math
import threading
import time
from collections.abc import AsyncIterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route
from torch.nn import Module
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM

from posttrain.engines.delivery import digest
from posttrain.engines.published import Published
from posttrain.engines.vllm.extension.posttrain_rows import Rows
from posttrain.engines.vllm.port import machine

CARD = "GPU-of-the-stub"
GIB = 2**30
CHUNK = 3
"""Number of tokens in a message."""


def json_of(logprob: float) -> float | None:
    """The log-probability in vLLM's JSON, which replaces values that JSON has no number for."""
    return None if math.isnan(logprob) else max(logprob, -9999.0)


@dataclass
class Pending:
    """A row that waits for the logits of its next token."""

    ids: list[int]
    model: Module
    logits: asyncio.Future[torch.Tensor]


@torch.no_grad()
def logits_after(rows: list[list[int]], model: Module) -> torch.Tensor:
    """The logits after the last token of each row, `[B, V]`. Rows are padded on the right, where nothing reads them."""
    ids_BT = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    return model(ids_BT, use_cache=False).logits[range(len(rows)), [len(row) - 1 for row in rows]].float()


class StubServer:
    """A server for one model; it reads weights from the trainer's memory, as the real extension does."""

    facts: ClassVar[dict[str, Any]] = {}
    """The facts that differ from the right ones."""
    together = True
    """Whether requests share a connection."""
    alone = False
    """Whether each row is decoded by itself. In a batch, the others change the rounding of its log-probabilities."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.model.config.tie_word_embeddings = False
        self.models = {0: self.model}
        """The model after each update."""
        self.read: dict[tuple[str, tuple[int, ...]], int] = {}
        """The prefix cache: the update whose weights have read a prompt, by salt and prompt."""
        self.version, self.paused = "default", False
        self.maps = {"weights": 2 * GIB, "kv_cache": 4 * GIB}
        """Bytes of GPU memory that the server holds, by the tag that a wake maps again."""
        self.sleeps = set[str]()
        self.aborted = set[str]()
        self.running = set[str]()
        self.pending: list[Pending] = []
        self.calls: list[str] = []
        self.loads = 0

    # --- memory of a GPU ---------------------------------------------------------------------------------------------

    def held(self) -> int:
        """The memory that the server reports, in bytes."""
        return sum(size for tag, size in self.maps.items() if tag not in self.sleeps)

    def taken(self) -> int:
        """The memory that the server really holds, in bytes."""
        return self.held()

    def forget(self) -> None:
        """Zero the weights, as a sleep of level 2 does."""
        self.model = copy.deepcopy(self.model)
        with torch.no_grad():
            for tensor in self.tensors().values():
                tensor.zero_()

    def on_sleep(self, body: Any, request: Request) -> Any:
        assert request.query_params["level"] == "2"
        self.paused = True
        self.aborted |= self.running
        self.read.clear()
        self.sleeps |= self.maps.keys()
        self.forget()
        return {"status": "sleeping", "level": 2}

    def on_wake_up(self, body: Any, request: Request) -> Any:
        tags = set(request.query_params.getlist("tags")) or set(self.maps)
        self.sleeps -= tags
        self.paused = bool(self.sleeps)
        return {"status": "sleeping" if self.sleeps else "awake"}

    def on_is_sleeping(self, body: Any, request: Request) -> Any:
        return {"is_sleeping": self.paused or bool(self.sleeps)}

    # --- weights -----------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, torch.Tensor]:
        return dict(self.model.named_parameters(remove_duplicate=False))

    def update(self, info: dict[str, Any]) -> None:
        layout = {name: (dtype, shape) for name, (dtype, shape, _) in info["places"].items()}
        with open(info["path"], "rb") as file:
            sent = dict(Published([file.fileno()] * 2, layout, write=False).read(0))
        self.model = copy.deepcopy(self.model)
        self.load(sent)
        self.loads += 1
        self.models[self.loads] = self.model

    @torch.no_grad()
    def load(self, sent: dict[str, torch.Tensor]) -> None:
        for name, tensor in self.tensors().items():
            tensor.copy_(sent[name])

    def digests(self) -> dict[str, Any]:
        found = {name: digest(tensor) for name, tensor in self.tensors().items()}
        return {name: (str(one.dtype).removeprefix("torch."), one.sha256) for name, one in found.items()}

    # --- tokens ------------------------------------------------------------------------------------------------------

    def weights(self, asked: dict[str, Any]) -> Module:
        """The model that has read the prompt, if it is in the cache; otherwise the present one."""
        return self.models[self.read.setdefault((asked["cache_salt"], tuple(asked["token_ids"])), self.loads)]

    async def logits(self, ids: list[int], model: Module) -> torch.Tensor:
        """The logits after the last token of a row, computed together with the other rows that wait for theirs."""
        if self.alone:
            await asyncio.sleep(0)
            return logits_after([ids], model)[0]
        loop = asyncio.get_running_loop()
        if not self.pending:
            loop.call_soon(self.step)  # runs after the rows that are ready now, so that it computes them all
        row = Pending(list(ids), model, loop.create_future())
        self.pending.append(row)
        return await row.logits

    def step(self) -> None:
        pending, self.pending = [row for row in self.pending if not row.logits.done()], []
        for model in {row.model for row in pending}:
            rows = [row for row in pending if row.model is model]
            try:
                found = logits_after([row.ids for row in rows], model)
            except Exception as error:  # each request answers with it
                for row in rows:
                    row.logits.set_exception(error)
                continue
            for row, logits in zip(rows, found, strict=True):
                row.logits.set_result(logits)

    def scaled(self, logits: torch.Tensor, sampling: dict[str, Any]) -> torch.Tensor:
        return (logits / (sampling["temperature"] or 1.0)).log_softmax(-1)

    def draw(self, logprobs: torch.Tensor, sampling: dict[str, Any], generator: torch.Generator) -> int:
        if sampling["temperature"] == 0:
            return int(logprobs.argmax())
        return int(torch.multinomial(logprobs.exp(), 1, generator=generator))

    def spans(self, versions: list[str]) -> list[dict[str, Any]]:
        found = list[dict[str, Any]]()
        for at, version in enumerate(versions):
            if not found or found[-1]["version"] != version:
                found.append({"version": version, "start": at, "end": at})
            found[-1]["end"] = at + 1
        return found

    async def decode(self, asked: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Yield a choice for every few tokens; the last one has the finish reason."""
        sampling, ids, name = asked["sampling_params"], list(asked["token_ids"]), asked.get("request_id", "")
        generator = torch.Generator().manual_seed(sampling.get("seed", 0))
        told, versions, reason = list[dict[str, Any]](), list[str](), None
        self.running.add(name)
        try:
            while reason is None:
                while self.paused and name not in self.aborted:
                    await asyncio.sleep(0.001)
                if name in self.aborted:
                    reason = "abort"
                    break
                versions.append(self.version)
                logprobs = self.scaled(await self.logits(ids, self.weights(asked)), sampling)
                token = self.draw(logprobs, sampling, generator)
                ids.append(token)
                more = [
                    {"token_id": t, "logprob": json_of(float(logprobs[t]))}
                    for t in sampling.get("logprob_token_ids", ())
                ]
                told.append({"token_id": token, "logprob": float(logprobs[token]), "top_logprobs": more})
                if token in sampling.get("stop_token_ids", ()):
                    reason = "stop"
                elif len(versions) == sampling["max_tokens"]:
                    reason = "length"
                elif len(told) == CHUNK:
                    yield self.choice(told)
                    told = []
            yield self.choice(told) | {"finish_reason": reason, "weight_versions": self.spans(versions)}
        finally:
            self.running.discard(name)

    def choice(self, told: list[dict[str, Any]]) -> dict[str, Any]:
        plain = [one | {"logprob": json_of(one["logprob"])} for one in told]
        return {"index": 0, "token_ids": [one["token_id"] for one in told], "logprobs": {"content": plain}}

    # --- calls -------------------------------------------------------------------------------------------------------

    async def generate(self, request: Request) -> Any:
        asked = await request.json()
        if asked.get("stream"):

            async def lines() -> AsyncIterator[str]:
                async for choice in self.decode(asked):
                    yield f"data: {json.dumps({'choices': [choice]})}\n\n"
                yield "data: [DONE]\n\n"

            return StreamingResponse(lines(), media_type="text/event-stream")
        return JSONResponse({"choices": [choice async for choice in self.decode(asked)]})

    async def lines(self, state: Any, asked: dict[str, Any]) -> AsyncIterator[list[Any]]:
        """Yield the lines that `posttrain_rows` gets from vLLM."""
        async for choice in self.decode(asked):
            numbers = [one["logprob"] for one in choice["logprobs"]["content"]]
            spans = [(span["version"], span["start"], span["end"]) for span in choice.get("weight_versions", ())]
            yield [choice["token_ids"], numbers, choice.get("finish_reason"), spans]

    async def call(self, request: Request) -> Any:
        name, text = request.url.path.strip("/"), await request.body()
        body = json.loads(text) if text else {}
        self.calls.append(name)
        answer = getattr(self, f"on_{name}")(body, request)
        if inspect.isawaitable(answer):
            answer = await answer
        return answer if isinstance(answer, JSONResponse) else JSONResponse(answer or {})

    def on_weight_info(self, body: Any, request: Request) -> Any:
        return {"weight_version": self.version}

    def on_init_weight_transfer_engine(self, body: Any, request: Request) -> Any:
        return None

    async def on_pause(self, body: Any, request: Request) -> Any:
        """Answer when the requests that are aborted have ended, as vLLM does."""
        assert request.query_params["mode"] == "abort"
        self.paused, leaving = True, set(self.running)
        self.aborted |= leaving
        async with asyncio.timeout(60):
            while leaving & self.running:
                await asyncio.sleep(0.001)
        if request.query_params["clear_cache"] == "true":
            self.read.clear()

    def on_resume(self, body: Any, request: Request) -> Any:
        self.paused = False
        return None

    def on_start_weight_update(self, body: Any, request: Request) -> Any:
        assert not self.running, "requests are active during an update"
        assert "weights" not in self.sleeps, "weights are written to memory that is not mapped"
        return None

    def on_update_weights(self, body: Any, request: Request) -> Any:
        self.update(body["update_info"])

    def on_finish_weight_update(self, body: Any, request: Request) -> Any:
        self.version = body["weight_version"]

    def on_abort_requests(self, body: Any, request: Request) -> Any:
        self.aborted |= {name.removeprefix("generate-tokens-") for name in body["request_ids"]}

    def on_collective_rpc(self, body: Any, request: Request) -> Any:
        if body["method"] == "posttrain_digests":
            return {"results": [{"digests": self.digests(), "done": True}]}
        if body["method"] == "posttrain_held":
            return {"results": [{"bytes": self.held()}]}
        if body["method"] == "posttrain_reset":
            return {"results": [None]}
        right = {
            "logprobs_mode": "processed_logprobs",
            "dtype": "float32",
            "vocabulary": self.model.config.vocab_size,
            "max_model_len": 4096,
            "workers": 1,
            "sleeps": True,
            "device": CARD,
            "machine": machine(),
            "shape": {"num_hidden_layers": self.model.config.num_hidden_layers, "vocab_size": 1},
        }
        return {"results": [right | self.facts]}

    @contextmanager
    def serving(self) -> Any:
        """The server's address, while the server runs."""
        names = [name.removeprefix("on_") for name in dir(self) if name.startswith("on_")]
        routes = [Route(f"/{name}", self.call, methods=["GET", "POST"]) for name in names]
        app = Starlette(routes=[*routes, Route("/inference/v1/generate", self.generate, methods=["POST"])])
        app.state.engine_client = None
        if self.together:
            app.add_middleware(Rows, draws=self.lines)
        self.server = server = uvicorn.Server(
            uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off")
        )
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.005)
        try:
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        finally:
            server.should_exit = server.force_exit = True
            thread.join()
