"""Runs whose engines and reward workers are on a Ray cluster of three nodes: they end as on one machine, and continue
after the loss of an actor or a node. `pytest -s` prints how long that takes."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from tests.cluster.nodes import actor_of, lives, node_of, running, three_nodes, wait_for
from tests.episodes.talkers import talker
from tests.processes import Command
from tests.tiny import tiny_model, write_prompts

import posttrain as pt
from posttrain.cli import run
from posttrain.engines.delivery import digest
from posttrain.errors import ConfigError, DoesNotFit, PublishError

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]
ENGINE, WORKER = "posttrain.engines.worker", "posttrain.rewards.worker"
REWARD = """
import os
import time

from alphabet import position


def sorted_share(prompt, completion, answer, slow="", **row):
    if os.path.exists(slow):
        time.sleep(0.1)
    pairs = zip(completion, completion[1:])
    return sum(position(a) <= position(b) for a, b in pairs) / max(len(completion), 1)
"""
AHEAD = {"train.run_ahead": 2, "train.max_staleness": 8}


@pytest.fixture(scope="module")
def cluster():
    with three_nodes() as started:
        yield started


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    tiny_model(folder / "model")
    write_prompts(folder / "prompts.jsonl", count=1500)
    (folder / "rewards").mkdir()
    (folder / "rewards" / "alphabet.py").write_text("def position(letter):\n    return ord(letter)\n")
    (folder / "rewards" / "sorting.py").write_text(REWARD)
    return folder


def config(place: Path, name: str, **changes: object) -> dict[str, object]:
    return {
        "model": {"path": str(place / "model"), "device": "cpu"},
        "algorithm": "grpo",
        "data": {"train": str(place / "prompts.jsonl"), "eval_fraction": 0.02},
        "rewards": [{"function": f"{place}/rewards/sorting.py:sorted_share"}],
        "sampling": {"group_size": 4, "max_completion_length": 12},
        "train": {"steps": 12, "prompts_per_step": 4, "learning_rate": 1e-3},
        "rollout": {"engines": 2},
        "evaluation": {"prompts": 8, "samples": 1, "writing": 0},
        "guards": {"max_truncated": 1.0},
        "report": False,
        "output": str(place / name),
        **changes,
    }


def bits(run: Path) -> dict[str, object]:
    """All results of a run: weights, trained rows, evaluations."""
    answers = {file.name: file.read_bytes() for file in (run / "evaluations").glob("*.jsonl")}
    return {name: one.numpy().tobytes() for name, one in weights(run).items()} | {"trained": trained(run)} | answers


def weights(run: Path, step: int | None = None) -> dict[str, torch.Tensor]:
    """The weights of a step; None means the last one."""
    folders = (run / "checkpoints").glob("step-*" if step is None else f"step-{step:06d}")
    return load_file(max(folders) / "model" / "model.safetensors")


def trained(run: Path) -> list[tuple[int, int]]:
    """(step, prompt) of every group, in order."""
    files = sorted((run / "rollouts").glob("step-*.parquet"))
    rows = [row for file in files for row in pq.read_table(file, columns=["step", "group", "prompt_index"]).to_pylist()]
    found = dict.fromkeys((row["step"], row["group"], row["prompt_index"]) for row in rows)
    return [(step, prompt) for step, _, prompt in found]


def messages(run: Path) -> list[str]:
    return [json.loads(line)["message"] for line in (run / "events.jsonl").read_text().splitlines()]


def steps_of(run: Path) -> int:
    file = run / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def test_a_run_on_the_cluster_has_the_bits_of_one_on_this_machine(cluster, place):
    """Tokens, rewards by a function that imports a neighbouring module, weights, evaluations."""
    here = pt.train(config(place, "here"))
    there = pt.train(config(place, "there"), cluster=cluster.address)
    assert any(
        "the cluster holds 2 x engine: 1 CPU; 2 x reward worker: 1 CPU" in text for text in messages(there.folder)
    )
    assert bits(there.folder) == bits(here.folder)
    assert running(ENGINE) == running(WORKER) == []


GAME = """
from alphabet import position


class Game:
    def __init__(self, most=3):
        self.left = most

    def reset(self, row):
        self.answer, self.said = row["answer"], ""

    def step(self, message):
        self.said, self.left = message["content"], self.left - 1
        return "ab" if self.left else None

    def reward(self):
        return sum(position(a) <= position(b) for a, b in zip(self.said, self.said[1:])) / 12
"""


def test_turns_that_are_drawn_on_the_cluster_have_the_bits_of_those_on_this_machine(cluster, place):
    """The environment, which imports a neighbouring file, runs with the trainer; engines on the nodes draw its
    turns."""
    (place / "rewards" / "game.py").write_text(GAME)
    talker(place / "talker")
    turns = config(
        place,
        "turns here",
        model={"path": str(place / "talker"), "device": "cpu"},
        environment=f"{place}/rewards/game.py:Game",
        rewards=["environment"],
        sampling={"group_size": 4, "max_completion_length": 8, "max_turns": 3},
    )
    here = pt.train(turns)
    there = pt.train(turns | {"output": str(place / "turns there")}, cluster=cluster.address)
    assert any("the cluster holds 2 x engine: 1 CPU" in text for text in messages(there.folder))
    assert bits(there.folder) == bits(here.folder)
    assert min(line["turns/mean"] for line in there.metrics) > 1
    assert running(ENGINE) == running(WORKER) == []


def test_ppo_with_a_reward_model_ends_as_on_this_machine(cluster, place):
    """Equal to rounding only: the model scores groups together that ended together, which differs between runs. AdamW
    divides by the size of a gradient, and so magnifies the rounding of a gradient close to 0."""
    rows = [json.loads(line) for line in (place / "prompts.jsonl").read_text().splitlines()[:40]]
    pairs = [{"prompt": row["prompt"], "chosen": row["answer"], "rejected": row["answer"][::-1]} for row in rows]
    (place / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    stage = {
        "data": {"train": str(place / "pairs.jsonl")},
        "train": {"steps": 2, "learning_rate": 1e-2},
        "report": False,
    }
    ppo = {"algorithm": "ppo", "rewards": [{"model": "reward_model"}], "reward_model": stage}
    here = pt.train(config(place, "ppo here", **ppo), **{"train.steps": 4})
    there = pt.train(config(place, "ppo there", **ppo), cluster=cluster.address, **{"train.steps": 4})
    assert trained(there.folder) == trained(here.folder)
    for ours, theirs in zip(there.metrics, here.metrics, strict=True):
        assert ours["reward"] == pytest.approx(theirs["reward"], rel=1e-5)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-5)
    start, ours, theirs = (
        weights(folder, step) for folder, step in ((here.folder, 0), (there.folder, 4), (here.folder, 4))
    )
    moved = max(float((theirs[name] - start[name]).abs().max()) for name in theirs)
    apart = torch.cat([(ours[name] - theirs[name]).abs().flatten() for name in theirs])
    assert float((apart > 1e-6).float().mean()) < 1e-3
    assert float(apart.max()) < 5e-3 * moved


def test_weights_go_in_buckets_and_the_last_two_publications_are_kept(cluster):
    """Three tensors of 400, 40 and 4,000 bytes in buckets of 500: the last one has its own bucket."""
    import ray

    from posttrain.cluster.weights import PutWeights

    tensors = {"a": torch.arange(100.0), "b": torch.arange(20.0), "c": torch.arange(1000.0)}
    kinds = {"a": ("float32", (100,)), "b": ("bfloat16", (20,)), "c": ("float32", (10, 100))}
    ray.init(cluster.address, log_to_driver=False)
    try:
        weights = PutWeights(kinds, bucket=500)
        for number in range(3):
            digests = weights.write(
                number, [(name, (one + number).view(kinds[name][1])) for name, one in tensors.items()]
            )
        assert [[name for name, _, _ in ray.get(bucket)] for bucket in weights.buckets(2)] == [["a", "b"], ["c"]]
        assert {name: one.dtype for name, one in digests.items()}["b"] == torch.bfloat16
        for number in (1, 2):
            for name, tensor in weights.read(number):
                expected = (tensors[name] + number).view(kinds[name][1]).to(tensor.dtype)
                assert tensor.equal(expected)
                assert number == 1 or digest(tensor) == digests[name]
        with pytest.raises(KeyError):
            weights.buckets(0)
        with pytest.raises(PublishError, match="an engine decodes with b, which the trained model does not have"):
            weights.write(3, [("a", tensors["a"]), ("c", tensors["c"].view(10, 100))])
    finally:
        ray.shutdown()


def test_what_a_cluster_has_no_room_for_is_said_before_anything_is_started(cluster, place, monkeypatch):
    monkeypatch.setattr("posttrain.cluster.reservation.ROOM", 1.0)
    with pytest.raises(DoesNotFit, match=r"no room for 2 x engine: 64 CPUs; 2 x reward worker: 1 CPU: it has 6 CPUs"):
        pt.train(config(place, "too large", cluster={"address": cluster.address, "engine_cpus": 64}))


def test_a_cluster_that_is_not_there_is_an_error_of_the_configuration(place):
    with pytest.raises(ConfigError, match=r"cluster = 127\.0\.0\.1:9, and there is no such cluster"):
        pt.train(config(place, "nowhere", cluster="127.0.0.1:9"))


def test_a_submitted_run_is_that_of_the_command_on_this_machine_and_its_exit_code_comes_back(cluster, place, capfd):
    """Config, data and reward are sent along; trainer, engines and rewards are processes of the cluster."""
    here = pt.train(config(place, "not submitted"))
    relative = {"data": {"train": "prompts.jsonl", "eval_fraction": 0.02}, "output": None}
    relative["rewards"] = [{"function": "rewards/sorting.py:sorted_share"}]
    (place / "job.yaml").write_text(json.dumps({**config(place, ""), **relative}))
    submit = ["submit", "job.yaml", "--cluster", f"http://{cluster.webui_url}", "--output"]
    with contextlib.chdir(place):
        assert run([*submit, str(place / "submitted")]) == 0
        assert run([*submit, str(place / "refused"), "model.path=/no/such/model"]) == 2
    assert bits(place / "submitted") == bits(here.folder)
    assert any("the cluster holds 2 x engine" in text for text in messages(place / "submitted"))
    told = capfd.readouterr()
    assert f"folder     {place}/submitted" in told.out
    assert "ModelError: " in told.out + told.err


def test_a_run_is_submitted_with_a_url_and_goes_on_in_another_job(cluster, place):
    """Its working folder disappears with its job's folder: all files are at the URL, and another job fetches them."""
    url, behind = f"file://{place}/bucket/run", place / "bucket" / "run"
    whole = {**config(place, "without a URL"), "rollout": {}, "checkpoint": {"every": 2}}
    relative = {"data": {"train": "prompts.jsonl", "eval_fraction": 0.02}, "output": None}
    relative["rewards"] = [{"function": "rewards/sorting.py:sorted_share"}]
    submit = ["submit", "url.yaml", "--cluster", f"http://{cluster.webui_url}", "--output", url]
    (place / "url.yaml").write_text(json.dumps(whole | relative))
    with contextlib.chdir(place):
        assert run([*submit, "train.steps=4"]) == 0
        assert steps_of(behind) == 4
        (behind / "config.yaml").write_text((behind / "config.yaml").read_text().replace("steps: 4", "steps: 6"))
        (place / "url.yaml").write_text(json.dumps(whole | relative, indent=1))  # else Ray uses the same folder again
        assert run([*submit, "--resume"]) == 0
    here = pt.train(whole, **{"train.steps": 6})
    assert steps_of(behind) == 6
    assert trained(behind) == trained(here.folder)
    for name, one in weights(here.folder).items():
        assert torch.equal(one, weights(behind)[name]), name


def test_nothing_outlives_a_trainer_that_is_killed_and_the_run_goes_on(cluster, place):
    ahead = {
        "train": {"steps": 30, "prompts_per_step": 4, "run_ahead": 2, "max_staleness": 8},
        "checkpoint": {"every": 5},
    }
    settings = config(place, "trainer killed", cluster=cluster.address, **ahead)
    (place / "killed.yaml").write_text(json.dumps(settings))
    trainer, folder = Command("train", "killed.yaml", cwd=place), place / "trainer killed"
    wait_for("step 8", lambda: steps_of(folder) >= 8 or trainer.returncode is not None, 300)
    held = [*running(ENGINE), *running(WORKER)]
    trainer.send_signal(signal.SIGKILL)
    began = time.monotonic()
    trainer.communicate(timeout=60)
    wait_for("the end of its processes", lambda: not any(map(lives, held)))
    assert len(held) == 4
    print(f"\ntrainer: its processes on the cluster ended after {time.monotonic() - began:.1f} s")
    pt.resume(folder)
    counts = Counter(prompt for _, prompt in trained(folder))
    assert len(counts) == 30 * 4
    assert set(counts.values()) == {1}


def test_lost_actors_and_a_lost_node_are_replaced_and_every_prompt_is_trained_once(cluster, place):
    """The test kills an actor of an engine, one of rewards, then a whole node."""
    run, told, errors = place / "killed", list[str](), list[BaseException]()
    slow = place / "slow"
    slow.touch()  # present as long as an actor or a node is still to be lost

    def lose(what: str, after: int, program: str, kill) -> None:
        wait_for(f"step {after}", lambda: steps_of(run) >= after, 300)
        victim = wait_for(f"an actor of {program}", lambda: running(program))[-1]
        known, losses = {one.pid for one in running(program)}, sum("is lost" in text for text in messages(run))
        began, step = time.monotonic(), steps_of(run)
        kill(victim)
        wait_for("the loss", lambda: sum("is lost" in text for text in messages(run)) > losses)
        line = f"{what}: noticed after {time.monotonic() - began:.1f} s"
        wait_for("the next step", lambda: steps_of(run) > step + 1)
        line += f", the next step but one after {time.monotonic() - began:.1f} s"
        wait_for("a new one", lambda: {one.pid for one in running(program)} - known)
        told.append(f"{line}, replaced after {time.monotonic() - began:.1f} s")

    def lose_all() -> None:
        try:
            lose("actor of an engine", 5, ENGINE, lambda one: actor_of(one).kill())
            lose("actor of a reward worker", 12, WORKER, lambda one: actor_of(one).kill())
            wait_for("engines on a node that can be lost", lambda: [e for e in running(ENGINE) if node_of(cluster, e)])
            lose("node", 20, ENGINE, lambda _: cluster.remove_node(busy_node(cluster), allow_graceful=False))
        except BaseException as error:
            errors.append(error)
        finally:
            slow.unlink()

    killer = threading.Thread(target=lose_all, daemon=True)
    killer.start()
    settings = {"rewards.0.settings": {"slow": str(slow)}, "train.steps": 300, "checkpoint.every": 100}
    done = pt.train(config(place, "killed"), cluster=cluster.address, **AHEAD, **settings)
    killer.join(1)
    print("\n" + "\n".join(told))
    assert errors == []
    assert len(told) == 3
    assert any(text.startswith("a reward worker is lost: its actor is gone") for text in messages(run))
    counts = Counter(prompt for _, prompt in trained(run))
    assert len(counts) == 300 * 4
    assert set(counts.values()) == {1}
    assert all(record.get("rewards/sorted_share/unscored", 0) == 0 for record in done.metrics)
    assert running(ENGINE) == running(WORKER) == []


def busy_node(cluster):
    """A node that holds an engine and is not the head."""
    return next(node for engine in running(ENGINE) if (node := node_of(cluster, engine)))
