"""Engines and ranks on a CPU: their processes share its memory and its cores, and the plan counts both."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from posttrain.config import load_config
from posttrain.lab.plan import side_by_side
from posttrain.lab.plan.api import Plan, make_plan
from posttrain.lab.plan.before_run import least_verdict
from posttrain.lab.plan.verdict import size
from posttrain.models.footprint import PROCESS
from posttrain.train import fleet

ON_CPU = {"model.device": "cpu", "train.steps": 10}
AHEAD = {"train.run_ahead": 2, "train.max_staleness": 8}
MINIMIND = Path(__file__).parents[4] / "shared" / "data" / "models" / "minimind2-small"


def planned(changes: dict[str, Any], **how: Any) -> Plan:
    return make_plan(None, {**ON_CPU, **changes}, model="0.5b", algorithm="grpo", **how)


def with_cores(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(side_by_side, "cores", lambda: number)
    monkeypatch.setattr(fleet, "cores", lambda: number)


# --- memory ----------------------------------------------------------------------------------------------------------


def bytes_of(plan: Plan, role: str) -> list[int]:
    return [phase.of(role) for phase in plan.memory.phases]


@pytest.mark.parametrize("ahead", [{}, AHEAD], ids=["in turns", "ahead"])
def test_engines_have_their_own_weights_keys_and_libraries_in_every_phase(ahead):
    none, two, four = (planned({"rollout.engines": n, **(ahead if n else {})}) for n in (0, 2, 4))
    weights = 4 * none.workload.architecture.parameters
    assert set(bytes_of(none, "engines")) == {0}
    for plan, number in ((two, 2), (four, 4)):
        [each] = set(bytes_of(plan, "engines"))
        assert each > number * (PROCESS + weights // 2) + weights, "and two publications of the weights"
        assert f"engines {size(each)}" in plan.render()
        assert "engines are processes on the same CPU" in " ".join(plan.render().split())
    assert two.memory.bytes < four.memory.bytes
    trainer = [phase.bytes - phase.of("engines") for phase in two.memory.phases]
    assert all(phase.bytes >= left for phase, left in zip(none.memory.phases, trainer, strict=True)), (
        "the trainer holds nothing more than without engines"
    )


@pytest.mark.slow
def test_more_engines_than_memory_has_room_for_do_not_fit_and_fewer_are_suggested(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=16 * 2**30, total=24 * 2**30))
    plan = planned({"rollout.engines": 64})
    assert plan.verdict.answer == "no"
    assert not make_plan(plan.config, {"rollout.engines": 0}).verdict.refused
    assert any("rollout.engines" in change.settings for change in plan.changes)


@pytest.mark.parametrize(
    ("changes", "how"),
    [
        ({"rollout.engines": 4}, {"gpus": "h100"}),
        ({"rollout.engines": 4, "rollout.engine": "vllm"}, {}),
        ({"rollout.engines": 4, "cluster": {}}, {}),
        ({"train.devices": 2, "cluster": {}}, {}),
        ({"train.devices": 2}, {"gpus": "2xh100"}),
        ({"train.devices": "auto"}, {}),
    ],
)
def test_processes_elsewhere_take_no_memory_of_this_cpu(changes, how):
    plan = planned(changes, **how)
    assert {*bytes_of(plan, "engines"), *bytes_of(plan, "other ranks")} == {0}


@pytest.mark.parametrize("algorithm", ["grpo", "sft", "dpo"])
def test_each_further_rank_has_its_libraries_and_its_activations(algorithm):
    one, two, four = (
        make_plan(None, {**ON_CPU, "train.devices": n}, model="0.5b", algorithm=algorithm) for n in (1, 2, 4)
    )
    train = [phase for plan in (one, two, four) for phase in plan.memory.phases if phase.name == "train"]
    others = [phase.of("other ranks") for phase in train]
    assert others[0] == 0
    assert others[1] >= 2 * PROCESS + train[0].of(what="activations"), "and a process that starts them"
    assert others[2] - others[1] == 2 * (others[1] - PROCESS)
    assert "4 ranks on this CPU are timed as one" in " ".join(four.render().split())
    assert "ranks on this CPU" not in one.render()
    assert least_verdict(four).needed == least_verdict(one).needed, "they run already when a run is refused"


@pytest.mark.skipif(not MINIMIND.is_dir(), reason="shared/data/models is missing")
@pytest.mark.parametrize(("engines", "measured"), [(1, 2192), (2, 2854)])
def test_a_measured_run_is_predicted_within_the_error_and_its_memory_suffices(engines, measured):
    """PSS of all processes, in MiB, without the trainer's libraries, which the error covers in each plan."""
    settings = {
        "model": {"path": str(MINIMIND), "device": "cpu"},
        "algorithm": "grpo",
        "data": {"train": "task:addition"},
        "rewards": ["numeric"],
        "sampling": {"group_size": 8, "max_completion_length": 48},
        "train": {"steps": 3, "prompts_per_step": 4, "learning_rate": 1e-6, "run_ahead": 2, "max_staleness": 8},
        "rollout": {"engines": engines},
    }
    plan = make_plan(settings)
    assert plan.memory.bytes == pytest.approx(measured * 2**20 - PROCESS, rel=plan.verdict.error)
    assert least_verdict(plan).needed * (1 - plan.verdict.error) < measured * 2**20 - PROCESS


# --- cores -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def on_cpu() -> Plan:
    return planned({})


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 7, 8, 64])
@pytest.mark.parametrize("ahead", [{}, AHEAD], ids=["in turns", "ahead"])
def test_trainer_and_engines_never_get_more_than_all_cores(monkeypatch, on_cpu, cores, ahead):
    with_cores(monkeypatch, cores)
    for engines in (1, 2, 3, 5, 16, 100):
        config = load_config(on_cpu.config, {"rollout.engines": engines, **ahead}).config
        trainer, engine = side_by_side.slowdown(config, on_cpu.workload)
        together = engines / engine + (1 / trainer if ahead else 0)
        assert together <= 1 + 1e-9, "shares of the cores"
        assert min(trainer, engine) >= 1
        if cores > engines:
            assert together > 0.5, "few cores are left idle"


@pytest.mark.parametrize(("engines", "crowded"), [(1, False), (2, True), (16, True)])
def test_no_speed_is_promised_from_cores_that_do_not_exist(monkeypatch, engines, crowded):
    with_cores(monkeypatch, 2)
    plan = planned({"rollout.engines": engines, **AHEAD})
    assert plan.beside is not None
    assert plan.beside.steps_per_hour < 1.5 * plan.beside.in_turns
    text = " ".join(plan.render().split())
    assert (f"{engines + 1} threads share 2 cores" in text) is crowded
    assert ("rollout.engines = 1 would do" in text) is crowded


@pytest.mark.slow
def test_engines_with_their_own_devices_share_no_cores(monkeypatch):
    with_cores(monkeypatch, 2)
    plan = make_plan(None, {"rollout.engines": 16, **AHEAD}, model="0.5b", algorithm="grpo", gpus="h100")
    assert plan.beside is not None
    assert plan.beside.cores is None
    assert "threads share" not in plan.render()
