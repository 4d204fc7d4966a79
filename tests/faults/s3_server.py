"""A server for the S3 protocol (moto) in a separate process, and a connection to it that can be cut."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from posttrain.train.local_ranks import free_port

PYTHON = os.environ.get("POSTTRAIN_MOTO", sys.executable)
"""An interpreter that has moto[server]; this interpreter needs s3fs."""
KEYS = {"AWS_ACCESS_KEY_ID": "canary-key-id", "AWS_SECRET_ACCESS_KEY": "canary-secret-1234567890"}


def require_s3() -> None:
    pytest.importorskip("s3fs", reason="needs s3fs: pip install 'posttrain[s3]'")
    if subprocess.run([PYTHON, "-c", "import moto, flask"], capture_output=True).returncode:
        pytest.skip("needs moto: pip install 'moto[server]', or POSTTRAIN_MOTO=a Python that has it")


def environment(port: int) -> dict[str, str]:
    """Environment variables that tell a client the server's address and switch off its retries."""
    return {
        **KEYS,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
    }


@contextmanager
def serving(log: Path, **told: str) -> Iterator[int]:
    """Start a server; yield its port when it answers."""
    port = free_port()
    with log.open("wb") as output:
        server = subprocess.Popen(
            [PYTHON, "-m", "moto.server", "-p", str(port)],
            stdout=output,
            stderr=output,
            env={**os.environ, **KEYS, **told, "PYTHONPATH": ""},
        )
    try:
        until = time.monotonic() + 60
        while not _answers(port):
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.1)
        yield port
    finally:
        server.kill()
        server.wait()


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


class Wire:
    """Forwards bytes to a port, until it is cut: then nothing answers, and open connections are reset."""

    def __init__(self, to: int) -> None:
        self.port, self._to = free_port(), to
        self._open: list[socket.socket] = []
        self.join()

    def join(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                here, _ = listener.accept()
                there = socket.create_connection(("127.0.0.1", self._to))
                self._open += [here, there]
                for source, sink in ((here, there), (there, here)):
                    threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while content := source.recv(65536):
            sink.sendall(content)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)
