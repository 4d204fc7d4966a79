"""Formats a plan: as text for a terminal, as one line before a run, and as JSON."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from posttrain.bundles import RANK, amounts, in_words, totals
from posttrain.lab.plan.collectives import Together, together
from posttrain.lab.plan.hardware import table
from posttrain.lab.plan.timing import WAITS, useful_devices
from posttrain.lab.plan.verdict import size
from posttrain.report.svg import percent, seconds

if TYPE_CHECKING:
    from posttrain.lab.plan.api import Plan
    from posttrain.lab.plan.fitting import Change
    from posttrain.lab.plan.records import Phase

WIDTH = 24
"""Width, in characters, of a full bar."""
SECTION = 9
COLUMNS = 110
"""Column at which long lines are wrapped."""
WORK = ("flops", "bytes", "layer_calls", "link_bytes", "network_bytes")


def line(plan: Plan) -> str:
    """Return the plan in one line: `256 answers a step, needs 3.1 of 24 GiB, at most about 4 min`."""
    rows = f"{plan.step.rows:,} {plan.step.rows_in_words if plan.step.rows_are != 'pairs' else 'rows'} a step"
    needed = plan.verdict.sentence(plan.hardware.count).removeprefix(f"fits: {plan.verdict.answer}, ")
    needed += f" ({alone})" if (alone := _on_one_device(plan)) else ""
    dollars = f", {money(plan.dollars)}" if plan.dollars is not None and plan.target.price is not None else ""
    return f"{rows}, needs {needed}, {at_most(plan.run_seconds)}{dollars}"


def at_most(seconds: float | None) -> str:
    """Return text such as `at most about 4 min`, if the time was computed."""
    return "time not computed" if seconds is None else f"at most about {duration(seconds)}"


def render(plan: Plan) -> str:
    """Return the full plan as text, section by section."""
    w = plan.workload
    lora = f", LoRA of rank {w.lora.rank}" if w.lora is not None else ""
    shape = f"{parameters(w.architecture.parameters)} parameters{_active(plan)}{lora}"
    head = f"{w.architecture.name} ({shape}), {w.algorithm}"
    sections = [
        _section("Step", [plan.step.sentence(w.steps)]),
        _section("Memory", _memory(plan)),
        _section("Server", _server(plan)),
        _section("Cluster", _cluster(plan)),
        _section("Change", _changes(plan)),
        _section("Time", _time(plan)),
        _section("Traffic", _traffic(plan)),
        _section("Beside", _beside(plan)),
        _section("Money", _money(plan)),
        _section("Disk", _disk(plan)),
        _section("Remarks", [f"- {remark}" for remark in plan.remarks]),
        _section("Assumed", _assumed(plan)),
    ]
    trained = plan.hardware.count
    apart = f" ({trained} to train + {plan.devices - trained} to sample)" if plan.devices > trained else ""
    where = replace(plan.hardware, count=plan.devices).name
    return "\n\n".join([f"{head}\non {where}{apart}", *filter(None, sections)])


def to_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as plain data, with bytes, seconds and dollars as numbers."""
    verdict = plan.verdict
    return {
        "fits": verdict.answer,
        "needed_bytes": verdict.needed,
        "available_bytes": verdict.available,
        "trains_on_one_device": _alone(plan),
        "main_memory": _main_memory(plan),
        "error": verdict.error,
        "hardware": {
            "name": plan.hardware.name,
            "devices": plan.hardware.count,
            "efficiency": asdict(plan.hardware.efficiency),
        },
        "model": {
            "name": plan.workload.architecture.name,
            "parameters": plan.workload.architecture.parameters,
            "active_parameters": plan.workload.architecture.active_parameters,
        },
        "algorithm": plan.workload.algorithm,
        "step": _step(plan),
        "run": {
            "steps": plan.workload.steps,
            "seconds": plan.run_seconds,
            "evaluations": plan.evaluations,
            "evaluation_seconds": plan.evaluation_seconds,
            "reference_seconds": plan.reference_seconds,
            "dollars": None if plan.dollars is None else list(plan.dollars),
        },
        "cluster": [{"holds": one.holds, **one.resources} for one in plan.bundles],
        "placements": [one.to_json() for one in plan.placements],
        "side_by_side": None if plan.beside is None else asdict(plan.beside),
        "memory": {
            phase.name: {"bytes": phase.bytes, "moment": phase.moment, "parts": [asdict(part) for part in phase.parts]}
            for phase in plan.memory.phases
        },
        "disk": {**asdict(plan.disk), "checkpoint": plan.disk.checkpoint, "total": plan.disk.total},
        "changes": [asdict(change) for change in plan.changes],
        "fits_on": list(plan.elsewhere),
        "remarks": [remark.to_json() for remark in plan.remarks],
        "notes": list(plan.memory.notes),
    }


def _step(plan: Plan) -> dict[str, Any]:
    step = plan.step
    return {
        "sentence": step.sentence(plan.workload.steps),
        **{name: getattr(step, name) for name in ("rows", "updates", "tokens", "computed_tokens", "microbatches")},
        "turns": None if step.turns is None else asdict(step.turns),
        "seconds": plan.step_seconds,
        "flops": plan.cost.work.flops,
        "bytes": plan.cost.work.bytes,
        "traffic": [
            {"phase": phase, **asdict(one)}
            for phase in ("generate", "score", "train")
            for one in together(plan.cost.messages(phase), plan.hardware)
        ],
        "parts": [
            {
                **{name: getattr(part, name) for name in ("phase", "what", "seconds", "waiting")},
                **{name: getattr(part.work, name) for name in WORK},
            }
            for part in plan.cost.parts
        ],
    }


def _alone(plan: Plan) -> dict[str, Any] | None:
    """Return the verdict for one device, if the run is planned for several."""
    alone = plan.on_one_device
    return None if alone is None else {"fits": alone.answer, "needed_bytes": alone.needed}


def _main_memory(plan: Plan) -> dict[str, Any] | None:
    """Return the verdict on a machine's main memory. None if nothing is kept there, or if its size is unknown."""
    main = plan.main_memory
    if main is None:
        return None
    return {"fits": main.answer, "needed_bytes": main.needed, "available_bytes": main.available}


# --- sections --------------------------------------------------------------------------------------------------------


def _section(name: str, lines: list[str]) -> str:
    """Return a section with its name before the first line, and long lines wrapped."""
    if not lines:
        return ""
    room = COLUMNS - SECTION
    folded = [part for line in lines for part in textwrap.wrap(line, room, subsequent_indent=_hanging(line)) or [""]]
    return "\n".join(f"{name if number == 0 else '':<{SECTION}}{line}" for number, line in enumerate(folded))


def _hanging(line: str) -> str:
    return " " * (len(line) - len(line.lstrip("- ")))


def _active(plan: Plan) -> str:
    shape = plan.workload.architecture
    mixed = shape.active_parameters != shape.parameters
    return f", {parameters(shape.active_parameters)} active" if mixed else ""


def _memory(plan: Plan) -> list[str]:
    verdict = plan.verdict
    head = f"{verdict.sentence(plan.hardware.count)} (±{verdict.error:.0%})"
    alone = [f"but {alone}"] if (alone := _on_one_device(plan)) else []
    if plan.too_large_to_start:
        alone.append(
            f"but the first rank samples from a copy of the model, "
            f"and loading it takes {size(plan.start_bytes)} in float32"
        )
    rows = [_phase(phase, max(verdict.available, verdict.needed)) for phase in plan.memory.phases]
    peak = plan.memory.peak
    parts = sorted(peak.parts, key=lambda part: -part.bytes)
    largest = ", ".join(f"{size(part.bytes)} {part.role} {part.what}" for part in parts[:5])
    moment = f", at the {peak.moment}" if peak.moment else ""
    factor = plan.hardware.memory_factor
    if factor != 1.0:
        head += f", with inexact parts times {factor:.2f}, as measured"
    if (main := plan.main_memory) is not None:
        alone.append(f"main memory of a machine {main.sentence()} (±{main.error:.0%})")
    return [head, *alone, *rows, f"peak while it {_doing(peak.name)}{moment}: {largest}"]


def _on_one_device(plan: Plan) -> str:
    """Return a note if there are several devices but the settings use only one."""
    alone = plan.on_one_device
    return "" if alone is None else f"with train.devices = 1 it trains on one of them ({alone.sentence()})"


def _doing(phase: str) -> str:
    return f"{phase}es" if phase.endswith("sh") else f"{phase}s"


def _phase(phase: Phase, whole: int) -> str:
    filled = min(WIDTH, round(WIDTH * phase.bytes / max(1, whole)))
    roles = ", ".join(f"{role} {size(needed)}" for role, needed in phase.by_role.items() if needed)
    return f"{phase.name:<9}{'█' * filled}{'░' * (WIDTH - filled)} {size(phase.bytes):>8}  {roles}"


def _changes(plan: Plan) -> list[str]:
    if plan.fits:
        return []
    elsewhere = [f"without changes, it fits on {', or '.join(plan.elsewhere)}"] if plan.elsewhere else []
    if not plan.changes:
        return ["found no settings that make it fit here: use a smaller model, or more memory", *elsewhere]
    told = [f"{c.command}: {size(c.bytes)}{_a_step(c)}; {', '.join(c.costs)}" for c in plan.changes]
    surely = all(change.bytes <= plan.verdict.surely for change in plan.changes)
    makes = "makes it fit" if surely else "probably makes it fit"
    if len(told) == 1:
        return [f"this {makes}: {told[0]}", *elsewhere]
    return [f"any one of these {makes}:", *(f"- {one}" for one in told), *elsewhere]


def _a_step(change: Change) -> str:
    return "" if change.seconds is None else f", {duration(change.seconds)} a step"


def _time(plan: Plan) -> list[str]:
    if plan.step_seconds is None or plan.run_seconds is None:
        return [
            "not computed with train.cpu_offload: copies to and from main memory, and AdamW on the processor, "
            "have not been timed"
        ]
    phases = [(name, plan.cost.of(name)) for name in ("generate", "score", "train")]
    parts = ", ".join(f"{name} {duration(spent)}" for name, spent in phases if spent)
    most = _at_most(plan)
    work = plan.cost.work
    between = f", and {size(work.link_bytes)} between devices" if work.link_bytes else ""
    evaluations = f"{plan.evaluations} evaluations of {duration(plan.evaluation_seconds)}"
    if plan.reference_seconds:
        once = f"the reference's pass over the rows, before the first step ({duration(plan.reference_seconds)})"
        evaluations += f", and {once}"
    return [
        f"{most}{duration(plan.step_seconds)} a step ({parts})",
        f"{duration(plan.run_seconds)} for {plan.workload.steps:,} steps and {evaluations}",
        f"a step computes {operations(work.flops)} and moves {size(work.bytes)} of memory{between}",
        *_waited(plan),
        *_wasted(plan),
    ]


def _at_most(plan: Plan) -> str:
    """Return a prefix that says that the time is an upper limit, if mean lengths are not given."""
    turns, told = plan.workload.turns, plan.target
    if plan.workload.data_kind != "prompts" or told.mean_completion_tokens is not None:
        return ""
    if turns is None:
        return "at most, if every answer has the maximum length: "
    return (
        "" if told.mean_turns is not None else ("at most, if trajectories have all turns, each of the maximum length: ")
    )


def _waited(plan: Plan) -> list[str]:
    """Return the time that a step waits for tools and environments."""
    found = [one for one in plan.cost.parts if one.what == WAITS]
    return [f"{duration(one.seconds)} of a step are spent waiting for tools and environments" for one in found]


def _beside(plan: Plan) -> list[str]:
    """Return the results of the simulation of sampling while training."""
    found, train = plan.beside, plan.config.train
    if found is None or plan.in_turns:
        return []
    engines = "1 engine samples" if found.engines == 1 else f"{found.engines} engines sample"
    gain = f"{found.steps_per_hour / found.in_turns:.1f} times"
    told = [
        f"{engines} while the model trains: {found.steps_per_hour:,.0f} steps an hour, {gain} as many as "
        f"in turns ({found.in_turns:,.0f})",
        f"the trainer waits {percent(found.trainer_idle)} of the time, and engines are idle "
        f"{percent(found.engines_idle)} of the time",
        f"trained tokens are {found.mean_age:.1f} versions old on average, 95% of them at most {found.p95_age}, the "
        f"oldest {found.oldest}; {percent(found.masked)} are older than train.max_staleness = {train.max_staleness}",
    ]
    if train.run_ahead != "auto" and found.enough_ahead > train.run_ahead:
        told.append(f"train.run_ahead = {found.enough_ahead} would be faster; higher values gain little more")
    if found.enough_staleness > train.max_staleness:
        told.append(f"train.max_staleness = {found.enough_staleness} would mask at most 1% of the tokens")
    return [*told, *_crowded(plan)]


def _crowded(plan: Plan) -> list[str]:
    """Return a remark if more threads work at the same time than there are cores."""
    found = plan.beside
    if found is None or found.threads is None or found.cores is None:
        return []
    (trainer, engine), ahead = found.threads, plan.config.train.lead > 0
    working, room = trainer * ahead + found.engines * engine, max(1, found.cores - ahead)
    if working <= found.cores:
        return []
    fix = f"; rollout.engines = {room} would do" if room < found.engines else ""
    cores = "1 core" if found.cores == 1 else f"{found.cores} cores"
    return [f"{working} threads share {cores}: so many engines make nothing faster, and take memory{fix}"]


def _beside_assumed(plan: Plan) -> list[str]:
    found = plan.beside
    if found is None:
        return []
    how = "in turns" if plan.in_turns else "side by side"
    told = [
        f"{how}: {found.steps} steps simulated, answers of {found.mean_tokens:,} tokens on average with a "
        f"log-normal spread of {found.spread:g}, at most {found.longest_tokens:,} (--mean-completion-length, "
        "--length-spread)"
    ]
    if plan.in_turns:
        told.append("trainer and server use the GPU in turns")
    elif found.threads is not None:
        trainer, engine = found.threads
        told.append(
            f"{found.cores} cores are shared, {trainer} for the trainer and {engine} for each engine; speed is "
            "proportional to cores, and threads beyond them slow each other down"
        )
    elif plan.config.cluster is not None and plan.workload.device == "cpu":
        told.append("each engine has cores of its own on the cluster (cluster.engine_cpus)")
    else:
        told.append("each engine has its own device, of the same kind as the training devices")
    return told


def _cluster(plan: Plan) -> list[str]:
    """Return the resources that a run requests from its cluster."""
    if not plan.bundles:
        return []
    has_ranks = any(one.holds == RANK for one in plan.bundles)
    how = "on as few nodes as possible" if has_ranks else "spread over nodes"
    trainer = (
        (
            "the command itself only watches the ranks: it needs no GPU, but must see the folder of the run like all "
            "nodes"
        )
        if has_ranks
        else ("the trainer runs where the command runs: with `posttrain submit` on a node, with its --cpus and --gpus")
    )
    asked = f"one placement group, {how}: {'; '.join(in_words(plan.bundles))}"
    return [f"{asked}; {amounts(totals(plan.bundles))} in all", trainer]


def _server(plan: Plan) -> list[str]:
    """Return the possible placements of a vLLM server, with their memory and speed."""
    if not plan.placements:
        return []
    taken = next(one for one in plan.placements if one.chosen)
    server, row = taken.server, plan.workload.max_batch_rows
    told = [
        f"vLLM takes {size(server.awake)}: weights {size(server.weights)}, KV cache {size(server.cache)} (for up "
        f"to {row} rows), overhead {size(server.overhead)}; {size(server.asleep)} when asleep"
    ]
    for one in plan.placements:
        words = "one GPU, in turns" if one.placement == "shared" else "a GPU each"
        if one.placement == "shared" and plan.config.train.lead:
            words += ", train.run_ahead = 0"
        taken = "; chosen" if one.chosen else ""
        told.append(
            f"{one.placement} ({words})  {one.verdict.sentence()}; {one.steps_per_hour:,.0f} steps an hour{taken}"
        )
    return told


def _wasted(plan: Plan) -> list[str]:
    """Return a note on devices without which a step would take as long."""
    useful, all_devices, w = useful_devices(plan.workload), plan.workload.ranks, plan.workload
    if useful == all_devices:
        return []
    kind = "prompts" if w.data_kind == "prompts" else "pairs" if w.data_kind == "pairs" else "rows"
    given = f"with {w.prompts_per_step:,} {kind} a step, {all_devices} devices are no faster than {useful}"
    return [f"{given}: raise train.prompts_per_step, or use fewer devices"]


def _money(plan: Plan) -> list[str]:
    if plan.dollars is None or plan.step_seconds is None or plan.run_seconds is None:
        return []
    low, high = plan.dollars
    each = plan.step_seconds / plan.run_seconds
    told = "your price" if plan.target.price is not None else f"on demand, prices of {table()['prices_as_of']}"
    return [f"{money((low, high))} for the run, {money((low * each, high * each))} a step ({told})"]


def _disk(plan: Plan) -> list[str]:
    disk = plan.disk
    free = "" if disk.free is None else f"; {size(disk.free)} free" + ("" if disk.fits else ", which is not enough")
    rollouts = f" + {size(disk.rollouts)} of answers" if disk.rollouts else ""
    each = f"{size(disk.checkpoint)} (model {size(disk.model)}, state {size(disk.state)})"
    return [f"{size(disk.total)} at most: {disk.checkpoints} checkpoints of {each}{rollouts}{free}"]


def _assumed(plan: Plan) -> list[str]:
    shares = plan.hardware.efficiency
    told = [
        f"{percent(shares.compute)} of the peak in matrix products, {percent(shares.bandwidth)} of the memory "
        f"bandwidth ({shares.source})",
        f"trained weights in float32, matrix products in {plan.workload.precision}",
        _rows_assumed(plan),
        "not included: your reward functions, judges, reading data, writing checkpoints",
    ]
    if plan.config.reward_model is not None:
        told.append("not included either: training the reward model first; plan its section separately")
    told += _turns_assumed(plan)
    if plan.workload.device == "cuda" and shares.source == "assumed":
        told.append(
            "time on GPUs is computed from data sheets and the share of the peak that published runs of other "
            "libraries reach (docs/scaling-on-paper.md); no GPU was available to measure it"
        )
    if plan.hardware.count > 1:
        told.append("time and price with several devices are computed, not measured")
        told += _links_assumed(plan)
    return [*told, *_beside_assumed(plan), *plan.memory.notes]


def _turns_assumed(plan: Plan) -> list[str]:
    turns = plan.workload.turns
    if turns is None:
        return []
    told = []
    if not turns.given and turns.number > 1:
        told.append("nothing is appended between two turns; set --given-length or sampling.max_trajectory_length")
    if not turns.seconds:
        told.append(
            "tools and environments answer immediately; set --call-seconds, which `posttrain reward test` measures"
        )
    else:
        told.append(
            f"tools and environments answer within {duration(turns.seconds)} (--call-seconds), in parallel for half "
            "of the open trajectories"
        )
    told.append("in every turn, a trajectory is computed again from its first token")
    if plan.config.environment.history == "split" or plan.config.agent.history == "split":
        told.append("the history is counted once, although history = split computes it again in every turn")
    return told


def _traffic(plan: Plan) -> list[str]:
    """Return the bytes that one device receives in each phase, with the time by bandwidth, latency and waiting."""
    return [line for phase in ("generate", "score", "train") for line in _traffic_of(plan, phase)]


def _traffic_of(plan: Plan, phase: str) -> list[str]:
    told = together(plan.cost.messages(phase), plan.hardware)
    if not told:
        return []
    all_of_it = sum(one.latency + one.bandwidth for one in told)
    waits = plan.cost.waiting(phase)
    received = size(sum(one.received for one in told))
    head = f"{phase}: each device receives {received} in {duration(all_of_it)}, and waits for {duration(waits)} of it"
    return [head, *(f"- {_collective(one)}" for one in told)]


def _collective(one: Together) -> str:
    machines = f" on {one.group.machines} machines" if one.group.machines > 1 else ""
    where = "" if one.kind == "send" else f" of {one.group.ranks} ranks{machines}"
    times = f"{one.times:,.0f} x " if one.times >= 1.5 else ""
    spent = f"{duration(one.bandwidth)} by bandwidth"
    spent += f", {duration(one.latency)} by latency" if one.latency >= 1e-3 else ""
    return f"{times}{one.kind}{where}: {size(one.received)}, {spent}"


def _links_assumed(plan: Plan) -> list[str]:
    hardware, shares = plan.hardware, plan.hardware.efficiency
    link = f"{percent(shares.link)} of {hardware.device.link / 1e9:,.0f} GB/s between the devices of a machine"
    if hardware.count > hardware.node:
        network = f"{percent(shares.network)} of {hardware.device.network / 1e9:,.3g} GB/s from each to other machines"
        link += f", {network} (--network)"
    if plan.workload.sharding in ("full", "hybrid"):
        link += "; weights and gradients move during computation, except the first and last of a pass"
    return [link]


def _rows_assumed(plan: Plan) -> str:
    lengths, w = plan.target.lengths, plan.workload
    if lengths is not None:
        return str(lengths)
    missing = f"there is no file {' or '.join(plan.target.missing)} on this machine" if plan.target.missing else ""
    known = "max_prompt_length" if w.data_kind == "prompts" else "max_length"
    if getattr(plan.config.data, known) is not None or plan.target.prompt_tokens is not None:
        return "rows of the maximum length that the settings allow" + (missing and f"; {missing}")
    of = f"prompts of {w.prompt_tokens:,}" if w.data_kind == "prompts" else f"rows of {w.row_tokens:,}"
    return f"{of} tokens, because {missing or 'the data or the tokenizer is not on this machine'}"


# --- units -----------------------------------------------------------------------------------------------------------


def parameters(number: int) -> str:
    """Format a number of parameters as in the names of models.

    >>> parameters(7_615_616_512), parameters(25_829_888), parameters(130_000)
    ('7.6B', '26M', '0.1M')
    """
    if number >= 1e9:
        return f"{number / 1e9:,.1f}B"
    return f"{number / 1e6:,.0f}M" if number >= 1e6 else f"{number / 1e6:.1f}M"


def operations(number: float) -> str:
    """Format floating-point operations for people.

    >>> operations(1.1e12), operations(5.583e15), operations(2.4e9)
    ('1.1 TFLOP', '5.6 PFLOP', '2.4 GFLOP')
    """
    unit, name = next(((u, n) for u, n in ((1e18, "E"), (1e15, "P"), (1e12, "T")) if number >= u), (1e9, "G"))
    return f"{number / unit:,.1f} {name}FLOP"


def money(low_high: tuple[float, float]) -> str:
    """Format dollars for people, as a range if the ends differ.

    >>> money((2.0, 2.0)), money((1.234, 150.0)), money((0.0012, 0.004))
    ('$2.00', '$1.23 to $150', '$0.0012 to $0.0040')
    """
    shown = [f"${x:,.0f}" if x >= 100 else f"${x:,.2f}" if x >= 0.1 else f"${x:.4f}" for x in low_high]
    return shown[0] if shown[0] == shown[1] else f"{shown[0]} to {shown[1]}"


def duration(value: float) -> str:
    """Format seconds for people, as days if there are many.

    >>> duration(90), duration(400_000)
    ('1 min 30 s', '4.6 days')
    """
    return seconds(value) if value < 2 * 86400 else f"{value / 86400:,.1f} days"
