"""`posttrain dash` shows runs to this machine's user and to nobody else, and writes nothing."""

from __future__ import annotations

import asyncio
import http.client
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.synchronize import Semaphore
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psutil
import pytest
from tests.catalogue import catalogue
from tests.report.synthetic_run import metrics_row, rollout_row, rollout_rows, write_lines, write_rollouts, write_run
from tests.report.test_page import PAYLOADS, Page, payload_run

from posttrain.cli import run as command
from posttrain.errors import ConfigError
from posttrain.report.dashboard import pages
from posttrain.report.dashboard.news import MOST_LISTENERS, News
from posttrain.report.dashboard.runs import find_runs, standing
from posttrain.report.dashboard.server import Dashboard
from posttrain.report.store import read_run


@dataclass
class Browser:
    """A client of a dashboard. `cookie` is the value that it received for the token."""

    address: str
    cookie: str = ""

    @property
    def port(self) -> int:
        return urlsplit(self.address).port or 0

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
        """Return (status, headers, text)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        sent = {"Cookie": self.cookie} if self.cookie else {}
        connection.request(method, path, headers=sent | headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        found = {name.lower(): ", ".join(answer.headers.get_all(name, [])) for name in answer.headers}
        return answer.status, found, text

    def enter(self) -> Browser:
        status, headers, _ = self.ask(f"/?{urlsplit(self.address).query}")
        assert (status, headers["location"]) == (303, "/")
        return Browser(self.address, headers["set-cookie"].split(";")[0])


def start(*arguments: str, cwd: Path) -> tuple[subprocess.Popen[str], Browser]:
    process = subprocess.Popen(
        [sys.executable, "-m", "posttrain", "dash", *arguments, "--port", "0", "--json"],
        cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    lines = "".join(iter(process.stdout.readline, "}\n")) + "}"
    return process, Browser(json.loads(lines)["address"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two runs that learned, one of them in a nested folder, and the page of a comparison."""
    made = tmp_path_factory.mktemp("dash") / "runs"
    write_run(made / "first")
    write_run(made / "versus" / "arms" / "grpo 1")
    (made / "versus" / "report.html").write_text("<p>a comparison</p>")
    outside = write_run(made.parent / "secret")
    (made / "link").symlink_to(outside)
    return made


@pytest.fixture(scope="module")
def server(folder) -> Iterator[Browser]:
    process, browser = start(str(folder), cwd=folder)
    yield browser
    listener = Listener(browser.enter(), "/news?seen=older")
    listener.next()
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0, "Ctrl-C must end it without an error, also while somebody listens"
    assert process.stderr is not None
    assert process.stderr.read() == ""


@pytest.fixture(scope="module")
def browser(server) -> Browser:
    return server.enter()


# --- contents ---------------------------------------------------------------------------------------------------------


def test_all_runs_with_where_they_stand(browser):
    status, _, text = browser.ask("/")
    page = Page(text)
    assert status == 200
    assert "2 runs, 0 running" in page.text
    assert page.text.count("accuracy 22% → 95% (90% to 98%)") == 2
    assert page.text.count("The model improved.") == 2
    links = [attributes.get("href") for tag, attributes in page.elements if tag == "a"]
    assert {"/runs/first/report.html", "/runs/versus/arms/grpo%201/report.html", "/runs/versus/report.html"} <= {*links}


def test_every_link_leads_somewhere(browser):
    seen, left = set[str](), ["/"]
    while left:
        address = left.pop()
        seen.add(address)
        status, _, text = browser.ask(address)
        assert status == 200, address
        found = [a.get("href") or "" for tag, a in Page(text).elements if tag == "a"]
        left += {link for link in found if link.startswith("/")} - seen - {*left}
    assert len(seen) == 6


def test_a_run_is_its_report_and_every_step_s_answers(browser):
    report = Page(browser.ask("/runs/first/report.html")[2])
    assert "22%16% to 30%→95%90% to 98%" in report.text
    answers = Page(browser.ask("/runs/first/rollouts")[2])
    assert "Answers of step 60" in answers.text
    assert answers.text.count("mean reward") == 8
    assert "Answers of step 30" in Page(browser.ask("/runs/first/rollouts?step=30")[2]).text


def test_a_page_that_lies_in_the_folder_is_shown_and_cannot_act(browser):
    """The page may have come with somebody else's runs."""
    _, headers, text = browser.ask("/runs/versus/report.html")
    frame = next(found for tag, found in Page(text).elements if tag == "iframe")
    assert frame["sandbox"] is None or frame["sandbox"] == "", "no script, no form, no window, no way out of the frame"
    assert "frame-src 'self'" in text, "the frame itself may show only this site"
    assert headers["content-security-policy"] == "frame-ancestors 'none'"
    _, headers, text = browser.ask(frame["src"])
    assert text == "<p>a comparison</p>"
    policy = headers["content-security-policy"]
    assert policy.startswith("sandbox; default-src 'none'"), (
        "opened alone, the page is as restricted, also against meta refresh"
    )
    assert "frame-ancestors 'self'" in policy
    assert "script" not in policy
    assert browser.ask("/runs/first/as-written.html")[0] == 404


def test_chosen_runs_are_drawn_on_the_same_plots(browser):
    one, two = "first", quote("versus/arms/grpo 1")
    page = Page(browser.ask(f"/overlay?run={one}&run={two}")[2])
    assert "2 runs on the same plots" in page.text
    assert [title for title in ("Held-out score", "Reward", "Entropy", "Gradient norm") if title not in page.text] == []
    for query in ("", "?run=first", "?" + "&".join(f"run={n}" for n in range(7))):
        assert browser.ask(f"/overlay{query}")[0] == 400


def test_programs_read_the_same_as_json(browser, folder):
    found = json.loads(browser.ask("/api/runs")[2])
    assert [run["name"] for run in found["runs"]] == ["first", "versus/arms/grpo 1"]
    one = json.loads(browser.ask(f"/api/runs/{quote('versus/arms/grpo 1')}")[2])
    assert one["newest"]["mean"] == pytest.approx(0.953125)
    assert (one["step"], one["steps"], len(one["metrics"])) == (60, 60, 60)
    assert one["metrics"] == read_run(folder / "versus" / "arms" / "grpo 1").metrics


def test_a_program_needs_the_token_alone_and_is_answered_as_json(server):
    query = urlsplit(server.address).query
    status, _, text = server.ask(f"/api/runs/first?{query}")
    assert (status, json.loads(text)["name"]) == (200, "first")
    status, headers, text = server.ask(f"/api/runs/nobody?{query}")
    assert (status, headers["content-type"]) == (404, "application/json")
    assert json.loads(text) == {"error": "There is no run named 'nobody' here."}


def test_looking_writes_nothing(browser, folder):
    def files() -> dict[str, tuple[int, int]]:
        return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in folder.rglob("*")}

    before = files()
    for address in ("/", "/runs/first/report.html", "/runs/first/rollouts", "/api/runs"):
        browser.ask(address)
    assert files() == before


# --- access -----------------------------------------------------------------------------------------------------------


def test_whoever_lacks_the_token_sees_nothing(server, browser):
    wrong = browser.cookie[:-1] + ("a" if browser.cookie[-1] != "a" else "b")
    for stranger, path in [
        (server, "/"),
        (server, "/runs/first/report.html"),
        (server, "/api/runs"),
        (server, "/?token=guess"),
        (server, "/?token=%C3%A9"),
        (Browser(server.address, wrong), "/"),
        (Browser(server.address, "posttrain_dash_1=" + browser.cookie.split("=")[1]), "/"),
    ]:
        status, _, text = stranger.ask(path)
        assert status == 403
        assert "first" not in text
    assert browser.ask("/?token=guess")[0] == 403, "a valid cookie must not make up for a wrong token"


def test_the_cookie_is_for_this_site_alone_and_no_script(server):
    _, headers, _ = server.ask(f"/runs/first/rollouts?step=30&{urlsplit(server.address).query}")
    assert headers["location"] == "/runs/first/rollouts?step=30", "the token must not stay in the address"
    assert {"HttpOnly", "SameSite=strict"} <= {part.strip() for part in headers["set-cookie"].split(";")}
    _, headers, _ = server.ask(f"//evil.example/?{urlsplit(server.address).query}")
    assert headers["location"] == "/evil.example/", "the redirect must not lead to another site"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example:{port}", "evil.example@127.0.0.1:{port}", ""],
)
def test_a_name_that_is_made_to_point_here_is_refused(browser, host):
    status, _, text = browser.ask("/", Host=host.format(port=browser.port))
    assert status in (400, 421)
    assert "first" not in text


@pytest.mark.parametrize("host", ["localhost:9000", "127.0.0.1:{port}", "[::1]:{port}", "127.0.0.1", "LocalHost:80"])
def test_names_of_this_machine_and_tunnels_to_it_are_not(browser, host):
    assert browser.ask("/", Host=host.format(port=browser.port))[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_nothing_but_reading_is_possible(browser, method):
    assert browser.ask("/", method)[0] == 405
    assert browser.ask("/runs/first/report.html", method)[0] == 405


def test_no_other_site_may_read_or_frame_a_page(browser):
    for path in ("/", "/api/runs", "/nothing"):
        _, headers, _ = browser.ask(path, Origin="https://evil.example")
        assert not [name for name in headers if name.startswith("access-control")]
        assert headers["content-security-policy"] == "frame-ancestors 'none'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
    assert browser.ask("/", "HEAD")[0] == 200


def test_no_other_machine_can_connect(server):
    found = [a.address for all_of in psutil.net_if_addrs().values() for a in all_of if a.family == socket.AF_INET]
    others = [address for address in found if not address.startswith("127.")]
    if not others:
        pytest.skip("this machine has no address but that of itself")
    for address in others:
        with pytest.raises(OSError):
            socket.create_connection((address, server.port), timeout=5)


@catalogue(
    "name",
    ["link", "../secret", "..%2fsecret", "first/../../secret", "/etc", "%2fetc", "first%00", "first/checkpoints"],
)
def test_names_lead_nowhere_else(browser, name):
    for path in (f"/runs/{name}/report.html", f"/runs/{name}/rollouts", f"/api/runs/{name}"):
        status, _, text = browser.ask(path)
        assert status == 404
        assert "tiny:addition" not in text


def shown_by_all_pages(text: str, folder: Path, find: str) -> list[str]:
    """The pages about two runs in the folder that hold the text wherever somebody else may have written."""
    found = {name: standing(f"{name} {text}", payload_run(folder / name, text)) for name in ("a", "b")}
    run = read_run(found["a"].folder)
    return [
        pages.overview(folder, find_runs(folder / "none"), list(found.values())),
        pages.rollouts(f"a {text}", run, pages.Asked(step=60, find=find)),
        pages.overlay({f"{name} {text}": read_run(one.folder) for name, one in found.items()}),
        pages.failure(text),
    ]


@pytest.fixture
def two_runs(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        write_run(tmp_path / name, prompts=1)
    return tmp_path


@pytest.fixture
def all_harmless(two_runs: Path) -> list[str]:
    return shown_by_all_pages("harmless", two_runs, "")


@catalogue("payload", PAYLOADS)
def test_nothing_that_others_wrote_becomes_markup(payload, all_harmless, two_runs):
    """Each payload replaces the one before, in all files."""
    all_hostile = shown_by_all_pages(payload, two_runs, payload[:1])
    for harmless, hostile in zip(all_harmless, all_hostile, strict=True):
        tags = [[tag for tag, _ in Page(source).elements if tag != "span"] for source in (harmless, hostile)]
        assert tags[0] == tags[1]
        assert not [name for _, attributes in Page(hostile).elements for name in attributes if name.startswith("on")]
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\u2028\u2029\ufeff]", hostile)


# --- runs in any state ------------------------------------------------------------------------------------------------


def _write_slowly(folder: str, steps: int, seen: Semaphore) -> None:
    """Write a run in a separate process. Each line comes in two halves, as a reader may find it. After every twenty
    steps, wait until the reader has seen something of them."""
    path, rng = Path(folder), random.Random(0)
    (path / ".lock").write_text(f"pid {os.getpid()} on {socket.gethostname()}\n")
    with (path / "metrics.jsonl").open("a", buffering=1) as out:
        for step in range(1, steps + 1):
            line = json.dumps(metrics_row(step, steps, rng)) + "\n"
            for half in (line[: len(line) // 2], line[len(line) // 2 :]):
                out.write(half)
                out.flush()
                time.sleep(0.004)
            if step % 20 == 0:
                seen.acquire()
    time.sleep(60)


@pytest.mark.slow
def test_a_run_that_is_being_written_is_shown_as_far_as_it_is(tmp_path):
    folder = write_run(tmp_path / "runs" / "now")
    write_lines(folder / "events.jsonl", [{"time": "2026-11-20T10:00:00+00:00", "step": 0, "kind": "start"}])
    (folder / "metrics.jsonl").unlink()
    context = multiprocessing.get_context("spawn")
    seen = context.Semaphore(0)
    writer = context.Process(target=_write_slowly, args=(str(folder), 100, seen))
    process, browser = start("runs", cwd=tmp_path)
    try:
        browser = browser.enter()
        writer.start()
        steps = list[int]()
        deadline = time.time() + 60
        while (not steps or steps[-1] < 100) and time.time() < deadline:
            for path in ("/", "/runs/now/report.html", "/runs/now/rollouts"):
                status = browser.ask(path)[0]
                assert status == 200
            steps.append(json.loads(browser.ask("/api/runs/now")[2])["step"])
            if steps[-1] > max(steps[:-1], default=0):
                seen.release()
        assert steps == sorted(steps)
        assert (steps[-1], len(set(steps)) > 3) == (100, True)
        assert json.loads(browser.ask("/api/runs")[2])["runs"][0]["state"] == "running"
        writer.kill()
        writer.join()
        assert json.loads(browser.ask("/api/runs")[2])["runs"][0]["state"] == "stopped"
    finally:
        if writer.is_alive():
            writer.kill()
        process.kill()


def test_what_a_crash_left_is_shown_with_what_could_not_be_read(tmp_path):
    folder = write_run(tmp_path / "broken")
    with (folder / "metrics.jsonl").open("a") as out:
        out.write('{"step": 61, "rew')
    (folder / "config.yaml").write_text("model: [")
    (folder / "evaluation.json").write_text("{")
    (folder / "rollouts" / "step-000060.parquet").write_bytes(b"PAR1 and then nothing")
    found = standing("broken", folder)
    run = read_run(folder)
    assert (found.state, found.brief.step, found.brief.model) == ("finished", 60, "")
    assert found.brief.error.startswith("config.yaml"), "the overview must name the file that could not be read"
    assert "2 runs" not in pages.overview(tmp_path, find_runs(tmp_path), [found])
    page = Page(pages.rollouts("broken", run, pages.Asked.of({}, run.rollout_steps)))
    assert "step-000060.parquet could not be read" in page.text
    assert "metrics.jsonl is cut off" in Page(pages.overlay({"a": run, "b": run})).text


@pytest.mark.parametrize(
    ("last", "error", "owner", "state"),
    [
        ("end", False, "pid {dead} on {here}", "finished"),
        ("error", True, "pid {dead} on {here}", "failed"),
        ("error", True, "pid {alive} on {here}", "failed"),
        ("checkpoint", False, "pid {alive} on {here}", "running"),
        ("resume", True, "pid {alive} on {here}", "running"),
        ("checkpoint", False, "pid {dead} on {here}", "stopped"),
        ("checkpoint", False, "pid {alive} on another", "silent"),
        ("checkpoint", False, "", "silent"),
        ("checkpoint", False, "pid {alive}99999999999999 on {here}", "stopped"),
        ("checkpoint", False, "pid {dead} on {here} (00000000)", "silent"),  # in another container
    ],
)
def test_how_a_run_stands_is_told_by_its_files_and_its_process(tmp_path, last, error, owner, state):
    folder = write_run(tmp_path / "run")
    write_lines(folder / "events.jsonl", [{"step": 0, "kind": "start"}, {"step": 3, "kind": last}])
    if error:
        (folder / "error.json").write_text(json.dumps({"type": "NonFiniteError", "message": "loss is nan\nmore"}))
    gone = subprocess.Popen(["true"])
    gone.wait()
    names = {"dead": gone.pid, "alive": os.getpid(), "here": socket.gethostname()}
    (folder / ".lock").write_text(owner.format(**names))
    found = standing("run", folder)
    assert found.state == state
    assert found.brief.error == ("NonFiniteError: loss is nan" if state == "failed" else "")


def test_a_process_that_ended_unasked_for_and_another_one_with_its_number_are_not_the_run(tmp_path):
    folder = write_run(tmp_path / "run")
    write_lines(folder / "events.jsonl", [{"step": 0, "kind": "start"}])
    ended = subprocess.Popen(["true"])
    while psutil.Process(ended.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    (folder / ".lock").write_text(f"pid {ended.pid} on {socket.gethostname()}")
    assert standing("run", folder).state == "stopped"
    ended.wait()
    (folder / ".lock").write_text(f"pid {os.getpid()} on {socket.gethostname()}")
    assert standing("run", folder).state == "running"
    long_ago = psutil.Process().create_time() - 1000
    os.utime(folder / ".lock", (long_ago, long_ago))
    assert standing("run", folder).state == "stopped"


@pytest.mark.parametrize("kind", ["KeyboardInterrupt", "AlarmStop"])
def test_a_run_that_somebody_stopped_has_not_failed(kind, tmp_path):
    folder = write_run(tmp_path / "run")
    write_lines(folder / "events.jsonl", [{"step": 0, "kind": "start"}, {"step": 3, "kind": "error"}])
    (folder / "error.json").write_text(json.dumps({"type": kind, "message": "stopped after step 3"}))
    found = standing("run", folder)
    assert (found.state, found.brief.error) == ("stopped", f"{kind}: stopped after step 3")


def test_one_odd_run_does_not_hide_the_others(tmp_path, monkeypatch):
    write_run(tmp_path / "sound")
    write_run(tmp_path / "export")  # a name with a meaning only inside a run
    for name in (b"run\xe9", b"two\nlines"):
        write_run(tmp_path / "named").rename(os.fsdecode(os.path.join(os.fsencode(tmp_path), name)))
    write_lines(write_run(tmp_path / "huge") / "metrics.jsonl", [{"step": 10**400}, {"step": True}, {"step": -1}])
    pipe = write_run(tmp_path / "pipe") / "metrics.jsonl"
    pipe.unlink()
    os.mkfifo(pipe)
    place = find_runs(tmp_path)
    assert set(place.runs) == {
        "run\N{REPLACEMENT CHARACTER}",
        "export",
        "huge",
        "pipe",
        "sound",
        "two\N{REPLACEMENT CHARACTER}lines",
    }
    found = {name: standing(name, path) for name, path in place.runs.items()}
    assert (found["huge"].brief.step, found["pipe"].brief.step, found["sound"].brief.step) == (0, 0, 60)
    pages.overview(tmp_path, place, list(found.values())).encode()

    def failing(run: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr("posttrain.report.dashboard.runs.heldout_points", failing)
    again = standing("sound", write_run(tmp_path / "sound again"))
    assert (again.state, again.brief.error) == ("failed", "its files could not be read (RecursionError: too deep)")


def test_a_step_of_any_number_of_digits_can_be_asked_for():
    assert pages.Asked.of({"step": "9" * 5000, "page": "9" * 5000}, [1, 2]) == pages.Asked(step=2)


def test_what_changed_is_read_again_and_what_did_not_is_not(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run")
    before = standing("run", folder)
    reads = []
    monkeypatch.setattr("posttrain.report.dashboard.runs.read_run", lambda path: reads.append(path) or read_run(path))
    assert standing("run", folder).brief is before.brief
    with (folder / "metrics.jsonl").open("a") as out:
        out.write(json.dumps({"step": 61, "reward": 0.125}) + "\n")
    assert standing("run", folder).brief.reward == 0.125
    assert reads == [folder]


def test_an_empty_folder_says_so_and_one_run_can_be_looked_at_alone(tmp_path):
    assert "No run has started below this folder" in pages.overview(tmp_path, find_runs(tmp_path), [])
    folder = write_run(tmp_path / "alone")
    assert find_runs(folder).runs == {"alone": folder}


# --- answers, one page at a time --------------------------------------------------------------------------------------


def test_answers_come_in_pages_and_can_be_chosen(tmp_path):
    folder, rng = write_run(tmp_path / "run"), random.Random(0)
    rows = rollout_rows(60, 60, rng, prompts=24, group_size=3)
    rows += [rollout_row("needle?", "a < b", reward, 0.0, rng, group=99, row=i) for i, reward in enumerate((1.0, 0.0))]
    rows[-1]["finish_reason"] = "length"
    write_rollouts(folder, 60, rows)
    run = read_run(folder)

    def shown(**query: str) -> Page:
        return Page(pages.rollouts("run", run, pages.Asked.of(query, run.rollout_steps)))

    def groups(page: Page) -> int:
        return sum(tag == "article" for tag, _ in page.elements)

    assert [groups(shown(page=str(n))) for n in (1, 2, 3, 4)] == [10, 10, 5, 5]
    assert "25 of 25 prompts, page 3 of 3" in shown(page="9").text
    assert "1 of 25 prompts" in shown(find="a < b").text
    assert "1 of 25 prompts" in shown(show="cut").text
    assert groups(shown(show="signal", find="needle")) == 1
    assert groups(shown(find="nowhere")) == 0
    assert "Answers of step 60" in shown(step="777", page="-3", show="<b>").text
    links = [a.get("href") for tag, a in shown(show="signal").elements if tag == "a" and "page=" in str(a.get("href"))]
    assert all("show=signal" in str(link) for link in links)


def test_a_run_without_answers_says_why(tmp_path):
    folder = write_run(tmp_path / "run")
    shutil.rmtree(folder / "rollouts")
    run = read_run(folder)

    def said(**changes: Any) -> str:
        return Page(pages.rollouts("run", replace(run, **changes), pages.Asked.of({}, []))).text

    assert "holds no answers: they are kept in rollouts/" in said()
    for metric in ("sft/nll", "logps/chosen", "margin", "step/count"):  # the last two: reward models
        assert "a run that learns from given answers samples none" in said(metrics=[{"step": 1, metric: 2.0}])
    assert "has not written a step yet" in said(metrics=[], status="unfinished")
    assert all("wrote no step" in said(metrics=[], status=status) for status in ("finished", "failed"))
    assert "step 0" not in said()


def test_an_answer_of_ten_megabytes_leaves_the_page_small(tmp_path):
    folder = write_run(tmp_path / "run")
    row = rollout_row("p", "short", 1.0, 0.5, random.Random(0))
    write_rollouts(folder, 60, [{**row, "completion": "x" * 10_000_000, "completion_ids": []}])
    page = pages.rollouts("run", read_run(folder), pages.Asked(step=60))
    assert "cut here: 4,000 of 10,000,000 characters shown" in page
    assert len(page) < 100_000


def test_only_what_several_runs_have_is_drawn(tmp_path):
    one, two = write_run(tmp_path / "one"), write_run(tmp_path / "two")
    rows = [json.loads(line) for line in (two / "metrics.jsonl").read_text().splitlines()]
    write_lines(two / "metrics.jsonl", [{"step": row["step"], "reward": row["reward"]} for row in rows])
    text = Page(pages.overlay({"one": read_run(one), "two": read_run(two)})).text
    assert "Reward" in text
    assert "Entropy" not in text


# --- news for open pages ---------------------------------------------------------------------------------------------


class Listener:
    """A client that listens for news. `seen` is the state that its page shows."""

    def __init__(self, browser: Browser, path: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", browser.port, timeout=30)
        self._connection.request("GET", path, headers={"Cookie": browser.cookie})
        self.answer = self._connection.getresponse()

    def next(self) -> str:
        """Return the name of the next state."""
        while not (line := self.answer.readline().decode()).startswith("data: "):
            assert line, "the server closed the connection"
        return line.removeprefix("data: ").strip()

    def close(self) -> None:
        self.answer.close()
        self._connection.close()


def seen_on(browser: Browser, path: str) -> tuple[str, str]:
    """Return (the address at which the page listens, the state that it shows)."""
    (body,) = [found for tag, found in Page(browser.ask(path)[2]).elements if tag == "body"]
    return str(body["data-live"]), str(body["data-seen"])


@pytest.mark.parametrize("path", ["/", "/runs/first/report.html", "/overlay?run=first&run=versus/arms/grpo%201"])
def test_a_page_hears_of_new_steps_and_of_nothing_else(browser, folder, path):
    address, seen = seen_on(browser, path)
    stale = Listener(browser, f"{address}{'&' if '?' in address else '?'}seen=older")
    assert stale.answer.headers["content-type"].startswith("text/event-stream")
    assert stale.next() == seen, "a page with an older state must hear of this one immediately"
    stale.close()
    current = Listener(browser, f"{address}{'&' if '?' in address else '?'}seen={seen}")
    metrics = folder / "first" / "metrics.jsonl"
    written = metrics.read_text()
    try:
        with metrics.open("a") as out:
            out.write(json.dumps({"step": 61, "reward": 0.5}) + "\n")
        news = current.next()
        assert news != seen
        assert news == seen_on(browser, path)[1]
    finally:
        metrics.write_text(written)
        current.close()


def test_news_are_for_those_who_may_look(server, browser):
    assert server.ask("/news")[0] == 403
    assert browser.ask("/news", Host="evil.example")[0] == 421
    assert browser.ask("/news", "POST")[0] == 405
    assert browser.ask("/news", "HEAD")[0] == 200
    assert browser.ask("/news?run=..%2Fsecret")[0] == 404
    assert browser.ask("/news?" + "&".join(f"run={n}" for n in range(7)))[0] == 400


def test_so_many_listen_and_no_more(browser):
    listeners = [Listener(browser, "/news?seen=older") for _ in range(MOST_LISTENERS)]
    try:
        assert {listener.next() for listener in listeners} == {seen_on(browser, "/")[1]}
        assert browser.ask("/news")[0] == 503
    finally:
        for listener in listeners:
            listener.close()
    deadline = time.monotonic() + 30
    while (status := Listener(browser, "/news?seen=older").answer.status) != 200 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert status == 200, "a listener that left makes room"


@pytest.mark.slow
def test_ctrl_c_ends_a_server_that_somebody_listens_to(tmp_path):
    write_run(tmp_path / "runs" / "one")
    process, browser = start("runs", cwd=tmp_path)
    listener = Listener(browser.enter(), "/news?seen=older")
    listener.next()
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""


def test_files_are_looked_at_once_a_second_however_many_listen():
    looks = list[int]()
    news = News(lambda: len(looks) >= 3)

    async def listen() -> list[str]:
        return [event async for event in news.of("all", lambda: looks.append(1) or str(len(looks)), "0")]

    async def both() -> list[list[str]]:
        return await asyncio.gather(listen(), listen(), listen())

    assert [heard[:2] for heard in asyncio.run(both())] == [["data: 1\n\n", "data: 2\n\n"]] * 3
    assert news.listeners == 0


# --- settings that differ ---------------------------------------------------------------------------------------------


def test_settings_that_differ_stand_beside_each_other(browser, folder):
    one, two = "first", quote("versus/arms/grpo 1")
    config = folder / "first" / "config.yaml"
    written = config.read_text()
    try:
        config.write_text(
            written.replace("clip_high: 0.28", "clip_high: 0.2").replace("  weight: 1.0", "  weight: 2.0")
        )
        page = Page(browser.ask(f"/overlay?run={one}&run={two}")[2])
    finally:
        config.write_text(written)
    cells = [found.get("data-title") for tag, found in page.elements if tag == "td"]
    assert cells.count("setting") == 2
    assert "algorithm.clip_high0.20.28" in page.text
    assert "rewards[0].weight2.01.0" in page.text
    assert "15 other settings are the same." in page.text
    assert "No setting differs." in Page(browser.ask(f"/overlay?run={one}&run={two}")[2]).text


# --- start ------------------------------------------------------------------------------------------------------------


def test_a_folder_that_is_not_there_is_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command(["dash"]) == 2
    assert "runs is not a folder" in capsys.readouterr().err


@pytest.mark.slow
def test_a_port_that_is_taken_is_an_error_or_the_next_one_is_used(tmp_path):
    first = Dashboard(tmp_path)
    second = Dashboard(tmp_path)
    assert first.port < second.port
    assert first.address != second.address
    with pytest.raises(ConfigError, match=rf"port {first.port} is taken, or may not be used(.|\n)*--port 0"):
        Dashboard(tmp_path, first.port)


@pytest.mark.slow
def test_without_the_extra_it_says_what_to_install(tmp_path):
    code = "import sys; sys.modules['starlette.applications'] = None\n"
    code += "from posttrain.cli import run; sys.exit(run(['dash', '.']))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert 'pip install "posttrain[dash]"' in done.stderr
