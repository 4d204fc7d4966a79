"""A cluster run before it has a cluster: its resources, the files that it sends, and refused settings."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest
from tests.tiny import tiny_model, write_prompts

import posttrain as pt
from posttrain.bundles import Bundle, bundles_of, ranks_of
from posttrain.cluster.luggage import LARGEST_FILE, Luggage
from posttrain.cluster.submit import Job, luggage_of, refuse_what_stays
from posttrain.config import check, load_config, to_yaml
from posttrain.errors import ConfigError
from posttrain.rewards.load import MOVED, Target, load
from posttrain.train.changes import Changes
from posttrain.train.job import launch

WITHOUT_RAY = importlib.util.find_spec("ray") is None


def settings(**changes: object) -> dict[str, object]:
    return {
        "model": {"path": "tiny:sort", "device": "cpu"},
        "algorithm": "grpo",
        "data": {"train": "task:sort"},
        "rewards": ["exact_match"],
        "sampling": {"max_completion_length": 32},
        "train": {"steps": 1},
        "rollout": {"engines": 3},
        "cluster": {"engine_cpus": 4, "reward_workers": 2},
        **changes,
    }


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a reward, the modules that it imports, and files that are not sent."""
    folder = tmp_path / "work"
    (folder / "rewards").mkdir(parents=True)
    (folder / "rewards" / "short.py").write_text(
        "from words import LIMIT\n\ndef short(completion):\n    return LIMIT\n"
    )
    (folder / "rewards" / "words.py").write_text("LIMIT = 7.0\n")
    (folder / "rewards" / "large.bin").write_bytes(b"\0" * (LARGEST_FILE + 1))
    for place in ("old-run/events.jsonl", ".venv/secret.py", "env/pyvenv.cfg", "__pycache__/short.pyc"):
        file = folder / "rewards" / place
        file.parent.mkdir()
        file.touch()
    monkeypatch.chdir(folder)
    return folder


# --- requested resources ---------------------------------------------------------------------------------------------


def test_a_run_asks_for_a_bundle_for_each_engine_and_each_reward_worker():
    config = load_config(settings()).config
    assert bundles_of(config, on_gpu=True) == (
        *[Bundle(holds="engine", cpus=4, gpus=1)] * 3,
        *[Bundle(holds="reward worker", cpus=1)] * 2,
    )
    assert bundles_of(config, on_gpu=False)[0].resources == {"CPU": 4.0}


def test_ranks_have_bundles_of_their_own_and_a_run_of_ranks_alone_is_enough_for_a_cluster():
    """The run is an SFT: no engine, no reward worker."""
    sft = {"algorithm": "sft", "data": {"train": "task:examples/sort"}, "rewards": [], "rollout": {}}
    config = load_config(settings(train={"steps": 1, "devices": 16}, cluster={"rank_cpus": 8}, **sft)).config
    check(config)
    ranks = (Bundle(holds="trainer rank", cpus=8, gpus=1),) * 16
    assert bundles_of(config, on_gpu=True, ranks=ranks_of(config)) == ranks
    assert [one.holds for one in bundles_of(load_config(settings()).config, on_gpu=False, ranks=1)][:2] == [
        "trainer rank",
        "engine",
    ]


def test_rewards_that_are_models_need_no_worker():
    config = load_config(settings(rewards=[{"model": "folder"}])).config
    assert [one.holds for one in bundles_of(config, on_gpu=False)] == ["engine"] * 3


def test_without_a_cluster_nothing_is_asked_for():
    assert bundles_of(load_config(settings(cluster=None)).config, on_gpu=True) == ()


def test_a_plan_says_what_the_cluster_is_asked_for():
    planned = pt.plan(settings())
    assert "3 x engine: 4 CPUs; 2 x reward worker: 1 CPU; 14 CPUs in all" in " ".join(planned.render().split())
    assert planned.to_json()["cluster"][0] == {"holds": "engine", "CPU": 4.0}
    assert "Cluster" not in pt.plan(settings(cluster=None)).render()


def test_a_plan_says_what_ranks_ask_for():
    planned = pt.plan(settings(train={"steps": 1, "devices": 2}))
    told = " ".join(planned.render().split())
    asked = "2 x trainer rank: 1 CPU; 3 x engine: 4 CPUs; 2 x reward worker: 1 CPU; 16 CPUs in all"
    assert f"one placement group, on as few nodes as possible: {asked}" in told
    assert "the command itself only watches the ranks" in told


@pytest.mark.skipif(not WITHOUT_RAY, reason="Ray is installed")
def test_without_ray_a_run_is_refused_before_it_has_a_folder(tmp_path):
    with pytest.raises(ConfigError, match="cluster = auto, and the package ray is not installed") as raised:
        pt.train(settings(output=str(tmp_path / "run")))
    assert raised.value.fix == "pip install 'posttrain[ray]'"
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_a_run_is_refused_before_anything_is_reserved(tmp_path):
    """The address has no cluster."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1}\n')
    ranks = settings(train={"steps": 1, "devices": 2}, cluster="127.0.0.1:9", output=str(tmp_path / "run"))
    with pytest.raises(ConfigError, match="run, which already holds a run"):
        launch(load_config(ranks), tmp_path / "run", None)


@pytest.mark.parametrize(("engines", "kept"), [(0, False), (2, True)])
def test_a_run_of_ranks_goes_on_with_one_device_without_the_cluster_unless_engines_need_it(tmp_path, engines, kept):
    config = settings(train={"steps": 1, "devices": 2}, rollout={"engines": engines})
    (tmp_path / "config.yaml").write_text(to_yaml(load_config(config)))
    changes = Changes.of(tmp_path, steps=3, devices=1)
    settled = load_config(tmp_path / "config.yaml", changes.overrides).config
    check(settled)
    assert (settled.cluster is not None) == kept
    (tmp_path / "config.yaml").write_text(changes.written_into((tmp_path / "config.yaml").read_text()))
    written = load_config(tmp_path / "config.yaml").config
    assert written == settled
    assert (written.train.steps, written.train.devices) == (3, 1)


# --- files that are sent ---------------------------------------------------------------------------------------------


def test_the_folder_of_a_reward_goes_along_and_is_found_on_the_node(here, tmp_path, monkeypatch):
    config = load_config(settings(rewards=[{"function": "rewards/short.py:short"}])).config
    with Luggage.of(config) as luggage:
        assert luggage.moved[str(here / "rewards")] == "rewards"
        assert sorted(os.listdir(luggage.folder / "rewards")) == ["short.py", "words.py"]
        assert (luggage.folder / "posttrain" / "rewards" / "worker.py").is_file()
        node = tmp_path / "node"
        luggage.folder.rename(node)
        monkeypatch.setenv(MOVED, json.dumps({old: str(node / new) for old, new in luggage.moved.items()}))
        (here / "rewards" / "short.py").write_text("raise SystemExit('the file of the other machine')")
        reward = load(Target(path=str(here / "rewards" / "short.py"), name="short"))
        assert reward("completion") == 7.0
        assert reward.__code__.co_filename == str(node / "rewards" / "short.py")
    assert not luggage.folder.exists()


def test_a_reward_from_elsewhere_keeps_no_place_and_one_that_is_installed_stays(here, tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "other.py").write_text("def other(completion):\n    return 1.0\n")
    rewards = [{"function": f"{tmp_path}/shared/other.py:other"}, {"function": "json.loads"}]
    with Luggage.of(load_config(settings(rewards=rewards)).config) as luggage:
        place = luggage.moved[str(tmp_path / "shared")]
        assert place.startswith("elsewhere/")
        assert (luggage.folder / place / "other.py").is_file()
        assert not (luggage.folder / "json").exists()


def test_too_much_is_refused_by_name(here, monkeypatch):
    monkeypatch.setattr("posttrain.cluster.luggage.LARGEST", 1 << 20)
    with pytest.raises(ConfigError, match=r"the files to send to the nodes with the run exceed 1 MiB, with /"):
        Luggage()


# --- a run as a job --------------------------------------------------------------------------------------------------


def job(**changes: object) -> Job:
    return Job(**{"config": "run.yaml", "overrides": ["seed=1"], "output": "/shared/run", "python": "/py"} | changes)  # pyright: ignore[reportArgumentType]


def test_a_job_takes_its_config_and_the_files_that_this_names_along(here):
    (here / "run.yaml").write_text(json.dumps(settings(data={"train": "data/rows.jsonl"})))
    (here / "data").mkdir()
    write_prompts(here / "data" / "rows.jsonl", count=2)
    with Luggage.of(load_config("run.yaml").config, files=True) as luggage:  # of ranks that the command itself starts
        assert (luggage.folder / "data" / "rows.jsonl").is_file()
        assert not (luggage.folder / "run.yaml").exists()
    with luggage_of(job(), load_config("run.yaml").config) as luggage:
        assert (luggage.folder / "run.yaml").read_bytes() == (here / "run.yaml").read_bytes()
        assert (luggage.folder / "data" / "rows.jsonl").is_file()


def test_the_files_of_a_pattern_and_what_links_lead_to_go_along_in_their_places(here, tmp_path_factory):
    (here / "run.yaml").write_text(json.dumps(settings(data={"train": "data/*.jsonl", "eval": "linked.jsonl"})))
    (here / "data").mkdir()
    for name in ("a", "b"):
        write_prompts(here / "data" / f"{name}.jsonl", count=2)
    (here / "linked.jsonl").symlink_to(write_prompts(tmp_path_factory.mktemp("far") / "rows.jsonl", count=2))
    with luggage_of(job(), load_config("run.yaml").config) as luggage:
        for name in ("data/a.jsonl", "data/b.jsonl", "linked.jsonl"):
            assert (luggage.folder / name).read_bytes() == (here / name).read_bytes()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"train": "large.jsonl"}, r"data\.train = large\.jsonl, a file of 10\.0 MiB, which is not sent"),
        ({"train": "la*.jsonl"}, r"data\.train = large\.jsonl, a file of 10\.0 MiB, which is not sent"),
        ({"eval": "../rows.jsonl"}, r"data\.eval = \.\./rows\.jsonl, a file that is not below the present directory"),
    ],
)
def test_data_that_cannot_be_sent_is_refused(here, data, message):
    (here / "large.jsonl").write_bytes(b" " * (LARGEST_FILE + 1))
    write_prompts(here.parent / "rows.jsonl", count=2)
    with pytest.raises(ConfigError, match=message):
        Luggage.of(load_config(settings(data={"train": "data.jsonl", **data})).config, files=True)


def test_the_program_of_an_agent_goes_along(here):
    (here / "run.yaml").write_text(json.dumps(settings(agent={"command": ["/usr/bin/python3", "agent.py"]})))
    (here / "agent.py").write_text("print(1.0)")
    with luggage_of(job(), load_config("run.yaml").config) as luggage:
        assert (luggage.folder / "agent.py").is_file()
        assert not list(luggage.folder.rglob("python3*"))


@pytest.mark.parametrize(
    ("engines", "devices", "more"),
    [(2, 1, ["--cluster", "auto"]), (0, 2, ["--cluster", "auto"]), (0, 1, []), (0, "auto", [])],
)
def test_the_command_of_a_job_names_its_interpreter_and_puts_engines_and_ranks_on_the_cluster(engines, devices, more):
    train = {"steps": 1, "devices": devices}
    config = load_config(settings(cluster=None, rollout={"engines": engines}, train=train)).config
    verb = ["/py", "-m", "posttrain", "train", "run.yaml", "seed=1"]
    assert job().command(config) == [*verb, *more, "--output", "/shared/run", "--quiet"]
    assert job(resume=True).command(config) == ["/py", "-m", "posttrain", "resume", "/shared/run", "--quiet"]


@pytest.mark.parametrize(
    ("changed", "given", "message"),
    [
        ({"output": "runs/first"}, {}, "output = runs/first, which would be in the job's own folder"),
        ({"config": "/etc/run.yaml"}, {}, "/etc/run.yaml is not below the present directory"),
        ({"config": "../run.yaml"}, {}, r"\.\./run\.yaml is not below the present directory"),
        ({}, {"model": {"path": "my-model"}}, "model.path = my-model, a folder on this machine"),
        ({}, {"rewards": [{"function": "../far.py:f"}]}, r"rewards\.0\.function = \.\./far\.py:f, whose file"),
        ({"gpus": 2}, {"train": {"steps": 1, "devices": 2}}, r"--gpus 2 with train\.devices = 2, whose ranks get GPUs"),
        ({}, {"tools": ["../far.py:look"]}, r"tools\.0 = \.\./far\.py:look, whose file is not sent"),
        ({}, {"tools": ["search:my-model"]}, r"tools\.0 = my-model, a folder on this machine"),
        ({}, {"environment": "/far/game.py:Game"}, r"environment\.function = /far/game\.py:Game, whose file"),
    ],
)
def test_what_a_job_would_miss_is_refused(here, changed, given, message):
    tiny_model(Path("my-model"))
    with pytest.raises(ConfigError, match=message) as raised:
        refuse_what_stays(job(**changed), load_config(settings(**given)).config)
    assert raised.value.fix
