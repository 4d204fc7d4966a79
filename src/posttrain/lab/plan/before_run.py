"""The plan before the run: predicts whether the run fits before anything is loaded, and refuses a run that cannot fit.

A run that fits is never refused. To refuse, the check uses the least that the run can need: the shortest answers and
prompts, the most frugal computation, less the stated error of the estimate. The printed line and its warning assume the
longest rows that the config allows. If no plan can be made, a line says why, and the run goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from huggingface_hub import get_session, hf_hub_download, hf_hub_url, try_to_load_from_cache
from huggingface_hub.utils import build_hf_headers

from posttrain.errors import DoesNotFit, PosttrainError
from posttrain.lab.advise.ranges import remarks
from posttrain.lab.plan.api import Plan, Target, plan_for, verdict_on, with_lengths, workload_for
from posttrain.lab.plan.architecture import size_classes
from posttrain.lab.plan.hardware import Hardware
from posttrain.lab.plan.mesh import shard_group
from posttrain.lab.plan.phases import predict
from posttrain.lab.plan.records import Workload
from posttrain.lab.plan.target import gpu_here, over_ranks, processor_here
from posttrain.lab.plan.verdict import Verdict, size
from posttrain.lab.plan.workload import of_stage, require_room
from posttrain.models.load import choose_device
from posttrain.models.reading import HUB_NAME

if TYPE_CHECKING:
    from posttrain.config import ModelConfig, RunConfig
    from posttrain.report.terminal import TerminalView
    from posttrain.store.run_store import RunStore

SHORTEST = 8
"""Assumed minimum length of a prompt and of an answer, in tokens."""
HUB_PATIENCE = 5.0
"""Timeout for the Hub, in seconds."""
DISK_ERROR = 0.1
"""Relative error of a checkpoint's size. It is small, because a checkpoint is mostly tensors of known sizes."""


def before_run(config: RunConfig, store: RunStore, view: TerminalView) -> None:
    """Check whether the run fits, and report settings outside published ranges. `posttrain.train` calls this first."""
    plan_first(config, store, view)
    for remark in remarks(config):
        store.event("warning", str(remark), step=0, about=remark.setting)
        view.event("warning", str(remark))


def plan_first(config: RunConfig, store: RunStore, view: TerminalView) -> None:
    """Print a line on the run's needs, write plan.json, and raise `DoesNotFit` if the run cannot fit.

    Raises ConfigError if completions leave no room for a prompt, before the model is loaded.
    Nothing goes to events.jsonl, because the free memory of a machine is not part of a run.
    """
    fetch_shape(config.model)
    require_room(config)
    try:
        plan = plan_for(config, with_lengths(config, target_here(config)))
        least = least_verdict(plan)
    except PosttrainError as error:
        view.event("plan", f"cannot tell whether it fits: {error.given}")
        return
    except Exception as error:  # an estimate has no say in whether a run begins
        view.event("plan", f"cannot tell whether it fits ({type(error).__name__}: {error})")
        return
    store.plan(plan.to_json())
    refuse(plan, least, store.folder)
    view.event("plan", plan.line())
    for warning in warnings(plan, least):
        view.event("warning", warning)


def sizes_here(config: RunConfig) -> dict[str, int]:
    """Return the batch sizes that fit this machine's GPU (sizes.py), by setting. Empty on a CPU, or without a plan."""
    if choose_device(config.model.device).type != "cuda":
        return {}
    try:
        workload = workload_for(config, with_lengths(config, target_here(config)))
    except Exception:  # an estimate has no say in whether a run begins
        return {}
    sizes = {
        "train.tokens_per_microbatch": workload.tokens_per_microbatch,
        "sampling.max_batch_rows": workload.max_batch_rows,
    }
    return sizes | ({"train.shard": shard_group(workload).ranks} if workload.ranks > 1 else {})


def fetch_shape(model: ModelConfig) -> None:
    """Download the config.json of a Hub model (a few kilobytes) to the local cache, where the plan finds it. Errors
    are ignored here and reported when the model is loaded."""
    name, revision = model.path, model.revision
    if not HUB_NAME.fullmatch(name) or Path(name).expanduser().exists() or name.lower() in size_classes():
        return
    if isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str):
        return
    with suppress(Exception):  # one request only: without a network, a plain download would retry many times
        url = hf_hub_url(name, "config.json", revision=revision)
        get_session().head(
            url, headers=build_hf_headers(), timeout=HUB_PATIENCE, follow_redirects=True
        ).raise_for_status()
        hf_hub_download(name, "config.json", revision=revision)


def plan_stages(configs: Mapping[str, RunConfig], folder: Path) -> None:
    """Raise `DoesNotFit` if a stage cannot fit, or ConfigError without room for its prompts, before any is trained.

    Other messages about a stage come when it begins.
    """
    for name, config in configs.items():
        fetch_shape(config.model)
        with of_stage(name):
            require_room(config)
        try:
            plan = plan_for(config, target_here(config))
            least = least_verdict(plan)
        except Exception:  # reported when the stage begins
            continue
        with of_stage(name):
            refuse(plan, least, folder)


def target_here(config: RunConfig) -> Target:
    """Return this machine as the target, as the run will use it."""
    device = choose_device(config.model.device)
    cards = torch.cuda.device_count() if device.type == "cuda" else 1
    hardware = over_ranks(_hardware(device), cards, config)
    return Target(hardware=hardware, cards=cards)


def _hardware(device: torch.device) -> Hardware:
    if device.type != "cuda":
        return processor_here()
    free, total = torch.cuda.mem_get_info(device)
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # freed by an earlier run
    return gpu_here(torch.cuda.get_device_name(device), total=total, free=free + kept)


def least_verdict(plan: Plan) -> Verdict:
    """Return the verdict on the most frugal version of the run: the shortest rows, and the least memory to compute."""
    verdicts = (verdict_on(predict(workload), plan.target) for workload in _frugal(plan.workload))
    return min(verdicts, key=lambda verdict: verdict.needed)


def _frugal(workload: Workload) -> Iterator[Workload]:
    shorter = replace(
        workload,
        prompt_tokens=min(SHORTEST, workload.prompt_tokens),
        completion_tokens=min(SHORTEST, workload.completion_tokens),
        turns=None,
        rank_processes=0,  # the other ranks run already, and have taken most of their memory
    )
    yield shorter
    for precision, packed in product(("float32", "bfloat16"), (False, True)):
        yield replace(shorter, precision=precision, packed_sampler=packed, onednn=False, engine="shared")


def refuse(plan: Plan, least: Verdict, folder: Path) -> None:
    """Raise `DoesNotFit` if memory or disk cannot suffice."""
    if least.refused:
        roles = "; ".join(f"{role} {size(needed)}" for role, needed in plan.memory.peak.by_role.items() if needed)
        raise DoesNotFit(
            given=f"the run needs {size(plan.verdict.needed)} of memory ({roles}), {size(least.needed)} at the "
            f"very least, but only {size(least.available)} are available",
            allowed=f"a run that fits, even if the estimate is off by {least.error:.0%}",
            fix=_way_out(plan),
        )
    main = plan.main_memory
    if main is not None and main.refused:
        raise DoesNotFit(
            given=f"with train.cpu_offload the ranks of a machine keep {size(main.needed)} in main memory, but "
            f"only {size(main.available)} are free",
            allowed=f"a run that fits, even if the estimate is off by {main.error:.0%}",
            fix=_way_out(plan),
        )
    if plan.too_large_to_start:
        raise DoesNotFit(
            given=f"the first rank samples from a copy of the model: {size(plan.start_bytes)} in float32 while it "
            f"is read, but a device has only {size(plan.verdict.available)}",
            allowed="a model whose copy fits on one device, or engines that sample",
            fix="Set rollout.engines: engines are separate processes, and then no rank holds a copy.",
        )
    first, free = plan.disk.first_save, plan.disk.free
    if free is not None and first * (1 - DISK_ERROR) > free:
        raise DoesNotFit(
            given=f"a checkpoint needs {size(first)}, but {folder} has {size(free)} free",
            allowed="room for at least one, because the run saves one before its first step",
            fix="Free some space, train adapters (lora = {}), or set output to a folder on another disk.",
        )


def _way_out(plan: Plan) -> str:
    more = "`posttrain plan CONFIG` shows where the memory goes."
    if not plan.changes:
        elsewhere = f"; without changes, it fits on {', or '.join(plan.elsewhere)}" if plan.elsewhere else ""
        return f"No settings make it fit here: use a smaller model, or a machine with more memory{elsewhere}. {more}"
    commands = ", or ".join(change.command for change in plan.changes)
    return f"It {_how_surely(plan)}fits with {commands}. {more}"


def _how_surely(plan: Plan) -> str:
    """Return "probably " if the changes suffice only if the estimate is exact (`changes_for` in api.py)."""
    return "" if all(change.bytes <= plan.verdict.surely for change in plan.changes) else "probably "


def warnings(plan: Plan, least: Verdict) -> Iterator[str]:
    """Yield warnings for a run that is not refused."""
    verdict = plan.verdict
    if verdict.answer != "yes":
        fits = f"; it {_how_surely(plan)}fits with {plan.changes[0].command}" if plan.changes else ""
        yield (
            f"memory may not suffice with the longest answers: {verdict.sentence()}, "
            f"and the estimate may be off by {verdict.error:.0%}{fits}"
        )
    if not plan.has_main_memory(surely=True) and plan.main_memory is not None:
        yield f"main memory may not suffice for train.cpu_offload: {plan.main_memory.sentence()} on each machine"
    if plan.disk.fits is False:
        yield (
            f"the disk may fill up: {size(plan.disk.total)} for {plan.disk.checkpoints} checkpoints and the "
            f"answers of all steps, but only {size(plan.disk.free or 0)} are free; lower checkpoint.keep"
        )
