"""Runs whose trainer is several ranks on a Ray cluster of three nodes: they end as on one machine, and restart from a
checkpoint after the loss of a rank or its node. `pytest -s` prints how long that takes."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any, TextIO

import psutil
import pytest
import torch
from safetensors.torch import load_file
from tests.cluster.nodes import CPUS, MEMORY, actor_of, lives, node_of, running, three_nodes, wait_for
from tests.episodes.talkers import talker
from tests.processes import Command

import posttrain as pt
from posttrain.cli import run
from posttrain.config import load_config
from posttrain.errors import ConfigError
from posttrain.ranks.environment import Place, told_to
from posttrain.report.terminal import TerminalView
from posttrain.train.hosts import CLUSTERS

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]
RANK, ENGINE, WORKER = "posttrain.train.rank", "posttrain.engines.worker", "posttrain.rewards.worker"


REWARD = """
import os
import time


def sorted_share(prompts, completions, answer, slow, **columns):
    if os.path.exists(slow):
        time.sleep(0.5)
    return [sum(a <= b for a, b in zip(one, one[1:])) / max(len(one), 1) for one in completions]
"""


@pytest.fixture(scope="module")
def cluster():
    """The head has room for one process, so that a rank is always on a node that can be lost."""
    with three_nodes(head_cpus=1) as started:
        yield started


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "rewards").mkdir()
    (folder / "rewards" / "sorting.py").write_text(REWARD)
    return folder


def config(place: Path, name: str, **changes: Any) -> dict[str, Any]:
    """A run whose rewards are slow while the file `slow` exists."""
    reward = {"function": f"{place}/rewards/sorting.py:sorted_share", "settings": {"slow": str(place / "slow")}}
    return {
        "model": {"path": "tiny:sort", "precision": "float32", "device": "cpu"},
        "algorithm": "grpo",
        "data": {"train": "task:sort"},
        "rewards": [reward],
        "sampling": {"group_size": 4, "max_completion_length": 8},
        "train": {"steps": 12, "prompts_per_step": 4, "learning_rate": 1e-3, "devices": 2},
        "rollout": {"engines": 1},
        "checkpoint": {"every": 2, "keep": 20},
        "evaluation": {"prompts": 8, "samples": 1, "writing": 0},
        "guards": {"max_truncated": 1.0},
        "report": False,
        "output": str(place / name),
        **changes,
    }


@pytest.fixture(scope="module")
def here(place):
    """The run of two ranks that the launcher of this machine starts."""
    return pt.train(config(place, "here"))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(max((folder / "checkpoints").glob("step-*")) / "model" / "model.safetensors")


def records(folder: Path) -> list[dict[str, Any]]:
    file = folder / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def messages(folder: Path) -> list[str]:
    return [json.loads(line)["message"] for line in (folder / "events.jsonl").read_text().splitlines()]


def assert_same(ours: Path, theirs: Path) -> None:
    """Weights bit for bit, every step once with the same reward, and the same measures on held-out rows."""
    first, second = weights(ours), weights(theirs)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    told = [[(record["step"], record["reward"]) for record in records(run)] for run in (ours, theirs)]
    assert told[0] == told[1]
    assert [step for step, _ in told[0]] == list(range(1, 13))
    assert json.loads((ours / "evaluation.json").read_text()) == json.loads((theirs / "evaluation.json").read_text())


def rank(number: int) -> psutil.Process:
    """The process of this rank."""
    return next(one for one in running(RANK) if one.environ()["RANK"] == str(number))


def test_ranks_on_nodes_end_with_the_bits_of_ranks_on_this_machine(cluster, place, here):
    """One placement group holds ranks, engine and reward worker."""
    on_cluster = {"address": cluster.address, "reward_workers": 1}
    there = pt.train(config(place, "there", cluster=on_cluster))
    held = "the cluster holds 2 x trainer rank: 1 CPU; 1 x engine: 1 CPU; 1 x reward worker: 1 CPU, on "
    assert any(text.startswith(held) for text in messages(there.folder))
    assert_same(there.folder, here.folder)
    assert running(RANK) == running(ENGINE) == running(WORKER) == []
    assert not list(there.folder.glob(".job-*"))


GAME = """
class Game:
    def __init__(self, most=3):
        self.left, self.said = most, ""

    def step(self, message):
        self.said, self.left = message["content"], self.left - 1
        return "a b" if self.left else None

    def reward(self):
        return sum(a <= b for a, b in zip(self.said, self.said[1:])) / 24
"""


def test_ranks_on_nodes_train_turns_with_the_bits_of_ranks_on_this_machine(cluster, place):
    """The environment runs with rank 0, and an engine draws its turns."""
    (place / "rewards" / "game.py").write_text(GAME)
    talker(place / "talker")
    rows = [{"prompt": " ".join(letters)} for letters in itertools.permutations("abcdef", 2)]
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    turns = {
        "model": {"path": str(place / "talker"), "precision": "float32", "device": "cpu"},
        "data": {"train": str(place / "rows.jsonl"), "eval_fraction": 0.2},
        "environment": f"{place}/rewards/game.py:Game",
        "rewards": ["environment"],
        "sampling": {"group_size": 4, "max_completion_length": 8, "max_turns": 3},
    }
    here = pt.train(config(place, "turns here", **turns))
    on_cluster = {"address": cluster.address, "reward_workers": 0}
    there = pt.train(config(place, "turns there", cluster=on_cluster, **turns))
    assert_same(there.folder, here.folder)
    assert min(record["turns/mean"] for record in records(there.folder)) > 1
    assert running(RANK) == running(ENGINE) == []


class Told(TerminalView):
    """The messages of a launcher, with their times."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream, quiet=True)
        self.heard = list[tuple[float, str]]()

    def event(self, kind: str, sentence: str) -> None:
        self.heard.append((time.monotonic(), sentence))


def test_lost_ranks_and_a_lost_node_start_the_job_again_and_it_ends_with_the_same_bits(cluster, place, here):
    """The test kills the process of a rank, the actor of the first one, then a node with a rank and other processes."""
    folder, slow, errors, lines = place / "lost", place / "slow", list[BaseException](), list[str]()
    slow.touch()  # present as long as a rank or a node is still to be lost

    def lose(what: str, after: int, kill: Callable[[], object]) -> None:
        wait_for(f"step {after}", lambda: len(records(folder)) >= after, 300)
        known, heard, step = {one.pid for one in running(RANK)}, len(view.heard), records(folder)[-1]["step"]
        assert len(known) == 2
        began = time.monotonic()
        kill()
        said, sentence = wait_for("the loss", lambda: view.heard[heard:], 60)[0]
        wait_for("new ranks", lambda: len({one.pid for one in running(RANK)} - known) == 2, 300)
        wait_for("the next step", lambda: records(folder) and records(folder)[-1]["step"] > step, 300)
        lines.append(f"{what}: noticed after {said - began:.1f} s, goes on after {time.monotonic() - began:.1f} s")
        lines.append(f"    {sentence}")

    def lose_all() -> None:
        try:
            lose("rank 1", 3, lambda: rank(1).kill())
            lose("actor of rank 0", 5, lambda: actor_of(rank(0)).kill())
            lose("node", 7, lambda: cluster.remove_node(node_of_a_rank(cluster), allow_graceful=False))
        except BaseException as error:
            errors.append(error)
        finally:
            slow.unlink()

    killer = threading.Thread(target=lose_all, daemon=True)
    with (place / "lost.txt").open("w") as stream:
        view = Told(stream)
        killer.start()
        pt.train(config(place, "lost", cluster={"address": cluster.address, "reward_workers": 0}), view=view)
        killer.join(1)
    print("\n" + "\n".join(lines))
    cluster.add_node(num_cpus=CPUS, object_store_memory=MEMORY)  # for the tests that follow
    assert errors == []
    assert_same(folder, here.folder)
    told = [text for text in messages(folder) if "continues from its newest checkpoint" in text]
    assert told[0] == "rank 1 was ended by signal 9 (SIGKILL); the job continues from its newest checkpoint"
    assert told[1].startswith("rank 0 was lost: its actor is gone (")
    assert len(told) == 3
    assert running(RANK) == running(ENGINE) == []


def node_of_a_rank(cluster):
    return next(node for one in running(RANK) if (node := node_of(cluster, one)))


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL])
def test_a_launcher_that_is_stopped_leaves_nothing_on_the_cluster(cluster, place, kind):
    name, slow = f"stopped {kind.name}", place / "slow"
    slow.touch()
    settings = config(place, name, cluster={"address": cluster.address, "reward_workers": 0})
    (place / "stopped.yaml").write_text(json.dumps(settings))
    launcher = Command("train", "stopped.yaml", cwd=place)
    wait_for("step 1", lambda: records(place / name) or launcher.returncode is not None, 300)
    held = [*running(RANK), *running(ENGINE)]
    assert len(held) == 3
    launcher.send_signal(kind)
    launcher.communicate(timeout=120)
    slow.unlink()
    assert launcher.returncode == {signal.SIGINT: 130, signal.SIGKILL: -9}[kind]
    wait_for("the end of its processes", lambda: not any(map(lives, held)))
    if kind == signal.SIGINT:
        done = records(place / name)[-1]["step"]
        assert (place / name / "checkpoints" / f"step-{done:06d}").is_dir()
        assert not list((place / name).glob(".job-*"))


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_launcher_that_is_stopped_while_its_ranks_start_ends_with_them(cluster, place, kind):
    """The signal comes before any process of the job could receive it."""
    name = f"stopped early {kind.name}"
    (place / "early.yaml").write_text(json.dumps(config(place, name, cluster={"address": cluster.address})))
    launcher = Command("train", "early.yaml", cwd=place)
    wait_for("the job", lambda: list((place / name).glob(".job-*/life-*/job.json")) or launcher.returncode, 300)
    launcher.send_signal(kind)
    launcher.communicate(timeout=120)
    assert launcher.returncode == 128 + kind
    assert not records(place / name)
    wait_for("the end of its processes", lambda: not [*running(RANK), *running(ENGINE)])


def test_a_signal_waits_for_a_process_that_is_not_there_yet(cluster):
    import ray

    from posttrain.cluster.host import Host, begin_worker
    from posttrain.cluster.remote import RemoteChild

    ray.init(cluster.address, log_to_driver=False)
    place, output = threading.Event(), os.memfd_create("output")

    def actor() -> Any:
        assert place.wait(60)
        return ray.remote(Host).options(num_cpus=0, max_concurrency=4).remote(begin_worker, {})

    child = RemoteChild(actor, output)
    try:
        child.signal(signal.SIGTERM)
        assert child.end() is None
        place.set()
        assert child.end(patience=60) == -signal.SIGTERM
    finally:
        child.kill()
        child.join()
        os.close(output)
        ray.shutdown()


def test_a_submitted_run_has_its_ranks_on_the_nodes(cluster, place, here):
    """Config and reward are sent along by their relative paths, also to the nodes of the ranks."""
    reward = {"function": "rewards/sorting.py:sorted_share", "settings": {"slow": "none"}}
    settings = {**config(place, "", rewards=[reward]), "output": None}
    (place / "job.yaml").write_text(json.dumps(settings))
    submit = ["submit", "job.yaml", "cluster.reward_workers=0", "--cluster", f"http://{cluster.webui_url}", "--output"]
    with chdir(place):
        assert run([*submit, str(place / "submitted")]) == 0
    assert_same(place / "submitted", here.folder)


def test_ranks_that_something_else_has_started_take_no_cluster(cluster, place, monkeypatch):
    """Such a combination has not been tested."""
    for name, value in told_to(Place(rank=0, size=2, local=0), "127.0.0.1", 1).items():
        monkeypatch.setenv(name, value)
    settings = load_config(config(place, "torchrun", cluster=cluster.address)).config
    with (
        pytest.raises(ConfigError, match="in a job whose ranks were started by torchrun or srun"),
        CLUSTERS["ray"].hosts(settings, print, print),
    ):
        pass


def test_where_a_lost_node_has_no_successor_the_run_goes_on_with_fewer_ranks(place, monkeypatch):
    """Three ranks on nodes of one processor each; two ranks read the checkpoint of three."""
    folder, slow = place / "fewer", place / "slow"
    slow.touch()
    monkeypatch.setattr("posttrain.cluster.reservation.ROOM", 60.0)

    with three_nodes(head_cpus=1, cpus=1) as small:

        def lose() -> None:
            wait_for("step 3", lambda: len(records(folder)) >= 3, 300)
            small.remove_node(node_of_a_rank(small), allow_graceful=False)
            wait_for("two ranks", lambda: len(running(RANK)) == 2, 300)
            slow.unlink()

        killer = threading.Thread(target=lose, daemon=True)
        killer.start()
        three = {"steps": 12, "prompts_per_step": 4, "learning_rate": 1e-3, "devices": 3}
        cluster = {"address": small.address, "reward_workers": 0}
        pt.train(config(place, "fewer", train=three, rollout={}, cluster=cluster))
        killer.join(1)
    assert [record["step"] for record in records(folder)] == list(range(1, 13))
    assert "  devices: 2  #" in (folder / "config.yaml").read_text()
    assert any(
        "with 2 of 3 ranks left; the job continues from its newest checkpoint" in one for one in messages(folder)
    )
    pt.resume(folder, steps=13, devices=1)
    assert [record["step"] for record in records(folder)] == list(range(1, 14))
    assert "\ncluster: null  #" in (folder / "config.yaml").read_text(), "one process without engines needs none"
