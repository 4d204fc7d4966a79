"""Evaluations, conversations and judges that real vLLM servers answer. Run by `make test-vllm`."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from contextlib import suppress

import httpx
import psutil
import pytest
from tests.engines.test_vllm_server import members, model
from tests.processes import Command
from tests.tiny import write_prompts
from transformers import AutoTokenizer

from posttrain.config import JudgeConfig
from posttrain.engine_environment import installed, interpreter
from posttrain.engines.vllm.server import PROGRAM, free_port
from posttrain.evaluate.api import evaluate
from posttrain.evaluate.chat import ChatSession
from posttrain.experience.driver import Driver
from posttrain.rewards.judge.endpoint import Endpoint
from posttrain.rewards.judge.local import LocalJudge
from posttrain.rewards.judge.records import Conversation

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not installed(), reason="vLLM is not installed: posttrain engine install vllm"),
]
REWARD = [{"name": "repetition", "settings": {"n": 1}}]
BY_SERVER = {"engine": "vllm", "deadline": 120}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serving")
    write_prompts(folder / "prompts.jsonl", count=48)
    return folder


def evaluated(place, **changes):
    path, data = model(place, "llama"), str(place / "prompts.jsonl")
    return evaluate(path, data, REWARD, k=2, max_completion_length=32, **changes)


def servers(parent: int) -> list[psutil.Process]:
    """The servers that this process has started."""
    found = list[psutil.Process]()
    with suppress(psutil.Error):
        for one in psutil.Process(parent).children(recursive=True):
            with suppress(psutil.Error):
                found += [one] if PROGRAM in one.cmdline() else []
    return found


def test_greedy_answers_are_those_of_the_local_sampler_though_the_server_is_killed(place, monkeypatch, capfd):
    take, drew = Driver._take_piece, threading.Event()

    def taken(self, name, piece):
        take(self, name, piece)
        drew.set()

    def kill():
        drew.wait()
        os.kill(max(one.pid for one in servers(os.getpid())), signal.SIGKILL)  # not its supervisor

    monkeypatch.setattr(Driver, "_take_piece", taken)
    threading.Thread(target=kill, daemon=True).start()
    served = evaluated(place, rollout=BY_SERVER)
    assert servers(os.getpid()) == []
    lost = [line for line in capfd.readouterr().err.splitlines() if line.startswith("engine 0 is lost")]
    assert len(lost) == 1
    assert "killed by signal 9" in lost[0]
    here = evaluated(place)
    assert [one.greedy for one in served.records] == [one.greedy for one in here.records]
    assert served.greedy_score == here.greedy_score
    assert all(len(one.samples) == 2 for one in served.records)


def test_a_conversation_is_that_of_the_local_sampler(place):
    path = model(place, "qwen3")
    with ChatSession(path, max_completion_length=16) as here:
        expected = [here.ask(text) for text in ("abc", "what is 7")]
    with ChatSession(path, max_completion_length=16, rollout=BY_SERVER) as session:
        assert [session.ask(text) for text in ("abc", "what is 7")] == expected
    assert servers(os.getpid()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_of_a_server_outlives_a_command_that_was_ended(place, number):
    asked = ["eval", str(model(place, "llama")), "--data", "prompts.jsonl", "--reward", "repetition", "-k", "500"]
    process = Command(
        *asked, "rollout.engine=vllm", "rollout.deadline=120", "--max-completion-length", "128", cwd=place
    )
    while not (found := servers(process.pid)):
        assert process.returncode is None, process.communicate()
        time.sleep(0.1)
    groups = {os.getpgid(one.pid) for one in found}
    while len(members(groups)) < 3:
        time.sleep(0.1)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    until = time.monotonic() + 20
    while members(groups) and time.monotonic() < until:
        time.sleep(0.1)
    assert members(groups) == []


def test_a_judge_behind_a_server_says_what_the_same_model_says_here(place):
    path = model(place, "gemma3")
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    tokenizer.save_pretrained(path)
    asked = [
        Conversation(messages=({"role": "user", "content": text},)) for text in ("which is better", "a or b", "score 5")
    ]
    here = LocalJudge(JudgeConfig(model=str(path), max_tokens=24, cache=False), device="cpu")
    expected = [reply.text for reply in here.answer(asked, lambda *_: None)]
    port = free_port()
    command = [str(interpreter()), "-P", "-m", PROGRAM, "--model", str(path), "--served-model-name", "judge"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"]
    command += ["--max-model-len", "256", "--generation-config", "vllm"]
    more = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1"}
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with (place / "judge.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=own | more, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}"
        while not is_there(url):
            assert server.poll() is None, (place / "judge.log").read_text()[-2000:]
            time.sleep(0.5)
        judge = Endpoint(JudgeConfig(model="judge", url=f"{url}/v1", max_tokens=24, cache=False))
        replies = judge.answer(asked, lambda *_: None)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    assert [reply.error for reply in replies] == ["", "", ""]
    assert [reply.text for reply in replies] == expected
    assert all(expected)


def is_there(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
