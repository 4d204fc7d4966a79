"""A vLLM server that belongs to a run: started, watched and ended with it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from posttrain import begin
from posttrain.child import last_words, work_of
from posttrain.engines.vllm import supervise
from posttrain.placement import ServerMemory

EXTENSION = Path(__file__).parent / "extension"
"""Folder on the server's path, with the module that loads weights and reports what it holds."""
PROGRAM = "vllm.entrypoints.launchers.api_server.entry"
ENDING = 5.0
"""Seconds to wait for killed processes, because the system frees their memory with a delay."""
LOOK = 0.01
PREFILL = 4096
"""Minimum prompt tokens that a server on a CPU may process in one pass; more if a row can be longer."""
STREAM_INTERVAL = 16
"""Tokens of a row that are sent together. Each message costs the server time in which it could decode."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The settings with which a server is started."""

    python: Path
    """The interpreter of vLLM's environment."""
    model: Path
    """A folder with a config. The weights come from the trainer."""
    dtype: str
    max_model_len: int
    max_num_seqs: int
    threads: int
    device: str
    cache_gib: float = 1.0
    """GiB for keys and values on a CPU."""
    card: str = ""
    """The server's GPU, as CUDA_VISIBLE_DEVICES names it."""
    shares: ServerMemory | None = None
    """The memory that it takes of the trainer's GPU while it is awake, if it shares that GPU. On a GPU of its own, vLLM
    decides."""
    card_bytes: int = 0
    """Total bytes of that GPU's memory."""


class Server:
    """One server process and the processes that it starts. It listens on this machine's loopback interface only."""

    def __init__(self, launch: Launch, log: Path) -> None:
        self.log, self.port = log, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        log.parent.mkdir(parents=True, exist_ok=True)
        heard, self._alive = os.pipe()
        started = [supervise.__file__, str(heard), begin.__file__, PROGRAM, *arguments(launch, self.port)]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [str(launch.python), "-P", *started],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[heard],
                start_new_session=True,  # Ctrl-C is for the trainer, which ends its engines
                env=environment(launch),
            )
        os.close(heard)

    def work(self) -> float:
        """Return the processor seconds that it has used so far."""
        return work_of(self.process.pid)

    def death(self) -> str:
        """Return how the process ended; empty while it runs."""
        code = self.process.poll()
        if code is None:
            return ""
        return last_words(code if code <= 128 else 128 - code, self.log)  # the supervisor's code for a signal

    def kill(self) -> None:
        """Kill the server with everything that it started. Then none of it holds memory any more."""
        started = list[psutil.Process]()
        with suppress(psutil.Error):
            started = psutil.Process(self.process.pid).children(recursive=True)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        until = time.monotonic() + ENDING
        while any(map(_runs, started)) and time.monotonic() < until:
            time.sleep(LOOK)
        with suppress(OSError):
            os.close(self._alive)


def _runs(process: psutil.Process) -> bool:
    """Return whether a process runs. A zombie, which is dead but not waited for, holds nothing and does not count."""
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def arguments(launch: Launch, port: int) -> Sequence[str]:
    """Return the command line of the server."""
    given = {
        "model": str(launch.model),
        "host": "127.0.0.1",  # the calls of development mode need no password
        "port": str(port),
        "dtype": launch.dtype,
        "max-model-len": str(launch.max_model_len),
        "max-num-seqs": str(launch.max_num_seqs),
        "load-format": "dummy",
        "logprobs-mode": "processed_logprobs",  # at the temperature with which tokens are sampled
        "generation-config": "vllm",  # else the model's own defaults enter sampling
        "stream-interval": str(STREAM_INTERVAL),
        "worker-extension-cls": "posttrain_vllm.Extension",
        "middleware": "posttrain_rows.Rows",
        "weight-transfer-config": json.dumps({"backend": "posttrain"}),
    }
    switches = ["--skip-tokenizer-init", "--enable-scale-out", "--disable-uvicorn-access-log"]
    if launch.device == "cpu":
        # After a part of a prompt, vLLM takes a draw back, which seeded random numbers on a CPU do not support.
        switches += ["--enforce-eager", "--no-enable-chunked-prefill"]
        given["max-num-batched-tokens"] = str(max(PREFILL, launch.max_model_len))
    if launch.shares:
        given |= {
            "gpu-memory-utilization": f"{launch.shares.awake / launch.card_bytes:.4f}",  # this much must be free
            "kv-cache-memory-bytes": str(launch.shares.cache),
        }
        switches.append("--enable-sleep-mode")
    return [*(word for name, value in given.items() for word in (f"--{name}", value)), *switches]


def environment(launch: Launch) -> dict[str, str]:
    """Return the environment variables of the server, with nothing of the trainer's interpreter."""
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    more = {
        "PYTHONPATH": str(EXTENSION),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(launch.threads),
    }
    if launch.device == "cpu":
        more |= {"VLLM_CPU_KVCACHE_SPACE": f"{launch.cache_gib:g}", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    if launch.card:
        more["CUDA_VISIBLE_DEVICES"] = launch.card
    return own | more


def free_port() -> int:
    """Return a port that nobody listens on at the moment."""
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return asked.getsockname()[1]
