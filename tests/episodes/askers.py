"""Agents of the tests that need no package: they send HTTP requests to the endpoint that the environment names."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

URL_WHEN_IMPORTED = os.environ.get("OPENAI_BASE_URL")


def request(path: str, body: Any = None, *, url: str = "", key: str = "") -> tuple[int, Any]:
    """The status and the body of the endpoint's answer; the body is text if it is no JSON."""
    headers = {"Authorization": f"Bearer {key or os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    asked = urllib.request.Request((url or os.environ["OPENAI_BASE_URL"]) + path, data, headers)
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            status, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text


def chat(messages: list[Any], **more: Any) -> dict[str, Any]:
    """The first choice of the answer. Raises RuntimeError if the request is refused."""
    status, body = request("/chat/completions", {"model": "any", "messages": messages, **more})
    if status != 200:
        raise RuntimeError(f"{status}: {body['error']['message']}")
    return body["choices"][0]


def opening(row: dict[str, Any]) -> list[Any]:
    """The prompt as messages."""
    prompt = row["prompt"]
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)


def talks(row: dict[str, Any], turns: int = 2, pause: float = 0.0, **more: Any) -> float:
    """An agent that says "c" after each answer of the model; the reward is the number of answers."""
    messages = opening(row)
    for turn in range(turns):
        messages.append(chat(messages, **more)["message"])
        time.sleep(pause * (turn % 2))
        messages.append({"role": "user", "content": "c"})
    return float(turns)


async def waits(row: dict[str, Any], base_url: str, api_key: str, seed: int) -> list[Any]:
    """An async agent that checks the arguments it receives, and returns the conversation."""
    assert (base_url, api_key) == (os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"])
    assert base_url == URL_WHEN_IMPORTED, "the file is imported after its session is known"
    status, body = request("/chat/completions", {"messages": opening(row)})
    assert status == 200
    said = body["choices"][0]["message"]
    return [*opening(row), said, {"role": "assistant", "content": f"{seed % 7} {random.randrange(100)}"}]


def edits(row: dict[str, Any]) -> None:
    """An agent that drops the conversation and asks again, which begins a second context."""
    chat(opening(row))
    chat([*opening(row), {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}])


def alternates(row: dict[str, Any]) -> None:
    """An agent that alternates between two conversations."""
    talks: dict[str, list[Any]] = {name: [{"role": "user", "content": name}] for name in "gh"}
    for _ in range(2):
        for messages in talks.values():
            messages.append(chat(messages)["message"])
            messages.append({"role": "user", "content": "c"})


def short(row: dict[str, Any]) -> float:
    """An agent that asks for one token at a time."""
    messages = opening(row)
    for _ in range(2):
        choice = chat(messages, max_tokens=1)
        messages += [choice["message"], {"role": "user", "content": "c"}]
    return float(choice["finish_reason"] == "length")


def persists(row: dict[str, Any]) -> float:
    """An agent that continues until it is refused, and checks the reason."""
    messages = opening(row)
    while True:
        status, body = request("/chat/completions", {"messages": messages})
        if status != 200:
            again, _ = request("/chat/completions", {"messages": messages})
            assert (status, again, body["error"]["code"]) == (400, 400, "session_over"), body
            return 0.5
        messages += [body["choices"][0]["message"], {"role": "user", "content": "c"}]


def breaks(row: dict[str, Any]) -> None:
    chat(opening(row))
    raise RuntimeError("the box is gone")


def fails(row: dict[str, Any]) -> float:
    """An agent with the fault that its row names, until the row's file shows that it was started often enough."""
    with Path(row["begun"]).open("a") as file:
        file.write("x")
    fault = row["fault"] if Path(row["begun"]).stat().st_size <= row["times"] else ""
    if fault == "asks nothing":
        return 1.0
    chat(opening(row))
    if fault == "raises":
        raise RuntimeError("the box is gone")
    if fault == "exits":
        sys.exit("enough")
    if fault == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "hangs":
        time.sleep(600)
    return {"gives nan": float("nan"), "speaks nonsense": {"x": 1}}.get(fault, 1.0)  # type: ignore[return-value]


def spies(row: dict[str, Any]) -> float:
    """An agent that writes down its address and its key, and tries those of the other agents. The reward is 1 if they
    refuse it access."""
    folder, own = Path(row["folder"]), (os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"])
    chat(opening(row))
    (folder / row["secret"]).write_text("\n".join(own))
    (folder / row["secret"]).rename(folder / f"{row['secret']}.key")
    until = time.monotonic() + 60
    while len(list(folder.glob("*.key"))) < row["sessions"] and time.monotonic() < until:
        time.sleep(0.01)
    others = [tuple(file.read_text().split("\n")) for file in folder.glob("*.key")]
    assert len({url for url, _ in others}) == len({key for _, key in others}) == row["sessions"]
    for url, key in set(others) - {own}:
        for address, token in ((own[0], key), (url, own[1]), (url, "x")):
            for path, body in (("/chat/completions", {"messages": opening(row)}), ("/models", None)):
                status, answer = request(path, body, url=address, key=token)
                assert status == 401, answer
                assert set(answer) == {"error"}
    chat(opening(row))
    (folder / f"{row['secret']}.done").write_text("")  # nobody leaves before all have tried
    while len(list(folder.glob("*.done"))) < row["sessions"] and time.monotonic() < until:
        time.sleep(0.01)
    return 1.0


if __name__ == "__main__":
    given = json.load(sys.stdin)
    print("a line that is no reward")
    print(json.dumps({"talks": talks, "edits": edits}[(sys.argv[1:] or ["talks"])[0]](given)))
