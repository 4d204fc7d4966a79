"""Predicts the memory of a step: bytes per phase and role.

    predict(Workload(architecture=read_architecture("0.5b"), algorithm="grpo", needs=frozenset({"reference"})))

The phases are generate, score, train and publish. The peak of each counts. The numbers for one device follow this
library's computation, and were compared with measured bytes of live tensors (docs/planner-measured.md). Sharding and
separate engines are computed from papers, see `notes`.

Ranks that train together divide the rows. roles.py says how weights, gradients and moments are sharded, mesh.py how
ranks are grouped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import ceil

from posttrain.lab.plan.activations import Head, Pass
from posttrain.lab.plan.generate import (
    casts,
    choice,
    joined_weights,
    keys_and_values,
    prefill,
    prompt_cache,
    repeated_keys,
)
from posttrain.lab.plan.layout import Layout, lay_out, microbatches
from posttrain.lab.plan.mesh import engine_group, of_one_rank, samplers, shard_group
from posttrain.lab.plan.records import BYTES, MemoryPlan, Moment, Part, Phase, PhaseName, Role, Workload, part, records
from posttrain.lab.plan.roles import (
    MASTER,
    engine_weights,
    frozen,
    frozen_scorers,
    gathered,
    has_reference,
    in_main_memory,
    policy_parameters,
    resident,
    sampler_copy,
    weight_ranks,
)
from posttrain.lab.plan.turns import first_and_last
from posttrain.lab.plan.update import training_moments
from posttrain.lab.plan.verdict import size
from posttrain.models.footprint import (
    PROBE_ROWS,
    PROBE_SCORED_TOKENS,
    PROBE_TOKENS,
    PROCESS,
    PUBLICATIONS,
    REWARD_TOKENS,
    holds_base,
)

PROCESSES = "in their own processes"
OF_A_PASS = ("activations", "logits", "temporaries")


def predict(workload: Workload) -> MemoryPlan:
    """Predict the bytes on each device in every phase of a step."""
    return MemoryPlan(workload=workload, phases=tuple(phases_of(workload)), notes=tuple(_notes(workload)))


def _notes(workload: Workload) -> Iterator[str]:
    """Yield notes on the parts of the plan that were never measured."""
    if workload.device == "cuda":
        yield "memory on a GPU is computed: no GPU was available to measure it, and its libraries' memory is left out"
    if workload.lora is not None and workload.lora.unknown:
        modules, kind = ", ".join(workload.lora.unknown), workload.architecture.kind
        yield f"adapters on {modules} are not counted: the plan knows no such module of the family {kind}"
    if workload.ranks > 1 and workload.sharding != "none" and shard_group(workload).ranks > 1:
        yield f"sharding over {shard_group(workload).ranks} ranks is computed from the papers of ZeRO and FSDP"
    if workload.tensor > 1:
        yield f"matrices divided among {workload.tensor} ranks are computed from the paper of Megatron-LM"
    if workload.cpu_offload:
        kept = size(in_main_memory(of_one_rank(workload)))
        yield f"in addition, {kept} of weights, gradients and moments of each device are in main memory"
    if workload.ranks > 1 and workload.data_kind == "prompts" and workload.engine != "separate":
        if workload.samplers is None:
            yield (
                f"all {workload.ranks} devices sample here (--engine {workload.engine}), as in other libraries; "
                "in a run the first one samples, or engines do (rollout.engines)"
            )
        elif workload.engine == "copy":
            yield (
                f"the first of {workload.ranks} devices samples from its own copy while the others wait, and "
                "needs the memory shown here; with rollout.engines = N, N engines sample instead"
            )
    if workload.engine == "separate":
        yield "a separate engine is computed: weights in its precision, keys and values of all rows in flight"
    if workload.engine_processes:
        yield (
            f"engines are processes on the same CPU: each has its own weights, keys and values, and {size(PROCESS)} of "
            "libraries"
        )
    if workload.rank_processes:
        yield (
            f"{1 + workload.rank_processes} ranks on this CPU are timed as one; each further process needs "
            f"{size(PROCESS)} of libraries and its own activations"
        )
    if any(block.mixture is not None for _, block in workload.architecture.blocks):
        yield "activations of experts are computed for tokens spread evenly over experts"


def phases_of(workload: Workload) -> Iterator[Phase]:
    """Yield the phases in order, per device. With a separate engine, generate runs on the engine's devices. Processes
    beside the trainer's live in every phase."""
    own = replace(workload, engine="shared", packed_sampler=False) if workload.engine_processes else workload
    for phase in _phases(own):
        yield replace(phase, parts=(*phase.parts, *_engine_processes(workload), *_other_ranks(workload, phase)))


def _phases(workload: Workload) -> Iterator[Phase]:
    """Yield the phases without the processes beside the trainer's."""
    rank = of_one_rank(workload)
    own = replace(rank, prompts_per_step=ceil(rank.prompts_per_step / rank.ranks))
    drawn = own if workload.samplers is None else _of_a_sampler(own, workload)
    kept = resident(own, drawn)
    stays = [*kept, *gathered(own)]
    if own.data_kind == "prompts":
        if own.engine == "separate":
            yield _engine(workload)
        elif own.engine_processes:
            yield _largest("generate", stays, [Moment(name="", parts=())])
        else:
            yield _largest("generate", stays, _generate(drawn))
        if scored := list(_score(own)):
            yield _largest("score", stays, scored)
    yield _largest("train", kept, [*training_moments(own), *_loading(own, kept), *_reference_pass(own, kept)])
    if own.data_kind == "prompts":
        yield _largest("publish", stays, _publish(own))


def _of_a_sampler(own: Workload, workload: Workload) -> Workload:
    """Return the workload of a rank that samples for others: the full model, and their prompts."""
    prompts = ceil(workload.prompts_per_step / samplers(workload))
    return replace(own, architecture=workload.architecture, prompts_per_step=prompts)


def _largest(name: PhaseName, stays: Sequence[Part], moments: Iterable[Moment]) -> Phase:
    moment = max(moments, key=lambda one: one.bytes)
    parts = [one for one in (*stays, *moment.parts) if one.bytes]
    return Phase(name=name, parts=tuple(parts), moment=moment.name)


def _loading(workload: Workload, stays: Sequence[Part]) -> Iterator[Moment]:
    """Yield the loading moment. The base of adapters is float32 until its layers are converted, before anything else is
    loaded. Only the bytes above the later resident ones count."""
    beyond = MASTER * policy_parameters(workload) // weight_ranks(workload) - sum(one.bytes for one in stays)
    narrowed = workload.lora is not None and holds_base(workload.device) and not workload.cpu_offload
    if narrowed and beyond > 0:
        yield Moment(name="loading", parts=(part("policy", "weights in float32", beyond),))


def _reference_pass(workload: Workload, stays: Sequence[Part]) -> Iterator[Moment]:
    """Yield the pass of a separate reference over given rows, which one process makes before the first step: it loads
    the model beside the policy in float32, converts its layers, and drops it. Only bytes above the later resident ones
    count."""
    given = "reference" in workload.needs and workload.data_kind != "prompts"
    if not given or workload.reference is None or has_reference(workload):
        return
    layout = microbatches(workload).largest
    body = Pass.of(workload, workload.reference, layout, adapters=None).forward_moment
    head = Head.of(workload, workload.reference, layout.scored, trained=False).forward_moment
    held = frozen("reference", workload.reference, workload).bytes
    most = max(MASTER * workload.reference.parameters, held + max(body, head))
    later = sum(one.bytes for one in stays if one.what not in ("weights", "adapters"))
    if most > later:
        yield Moment(
            name="reference's pass over the rows", parts=(part("reference", "weights and temporaries", most - later),)
        )


def _generate(workload: Workload) -> Iterator[Moment]:
    weights = _decoded_weights(workload)
    for drawn in first_and_last(workload):
        cache, logits = part("sampler", "keys and values", keys_and_values(drawn)), choice(drawn)
        yield Moment(name="choice of a token", parts=(*weights, cache, part("sampler", "logits", logits)))
        if repeated := repeated_keys(drawn):
            again = part("sampler", "temporaries", repeated)
            yield Moment(name="attention of the rows", parts=(*weights, cache, again))
        prompts = part("sampler", "keys and values", prompt_cache(drawn))
        yield Moment(name="prompts", parts=(*weights, prompts, part("sampler", "temporaries", prefill(drawn))))


def _decoded_weights(workload: Workload) -> tuple[Part, ...]:
    """Return the derived weights that the in-process sampler builds for a call, and drops at its end."""
    joined = part("sampler", "joined weights", joined_weights(workload))
    return joined, part("sampler", "casts of the weights", casts(workload))


def _engine(workload: Workload) -> Phase:
    ranks = engine_group(workload).ranks
    drawn = max(first_and_last(workload), key=keys_and_values)
    parts = (
        Part(role="sampler", what="copy of the weights", bytes=engine_weights(workload), stays=True),
        part("sampler", "keys and values", keys_and_values(drawn) // ranks),
        part("sampler", "logits", choice(drawn) // ranks),
    )
    return Phase(name="generate", parts=parts, moment="choice of a token", place="engine")


def _engine_processes(workload: Workload) -> Iterator[Part]:
    """Yield the part of the engines on this CPU. Each has its own weights, keys and values; all read the publications
    of the weights from shared memory."""
    number, packed = workload.engine_processes, workload.packed_sampler
    if not number:
        return
    own = replace(workload, engine="copy" if packed else "shared", prompts_per_step=workload.engine_prompts)
    weights = sampler_copy(own) if packed else MASTER * own.architecture.parameters
    each = PROCESS + weights + max(moment.bytes for moment in _generate(own))
    why = f"{number} of {size(each)}, and {PUBLICATIONS} publications of the weights"
    yield Part(role="engines", what=PROCESSES, bytes=number * each + PUBLICATIONS * weights, why=why, stays=True)


def _other_ranks(workload: Workload, phase: Phase) -> Iterator[Part]:
    """Yield the part of the other ranks on this CPU, and of the process that starts them. Ranks divide weights,
    gradients and moments, and compute as the first one does, except while it samples."""
    number = workload.rank_processes
    if not number:
        return
    passing = [one.bytes for one in phase.parts if not one.stays and one.what in OF_A_PASS]
    each = PROCESS + (sum(passing) if phase.name != "generate" else 0)
    why = f"{number} of {size(each)}, and {size(PROCESS)} of the process that starts them"
    yield Part(role="other ranks", what=PROCESSES, bytes=PROCESS + number * each, why=why, stays=True)


def _score(workload: Workload) -> Iterator[Moment]:
    """Yield the moments of passes without gradient: of the policy before its updates, a critic, and frozen models. A
    reward model scores after sampling (rewards/scoring.py)."""
    layout = microbatches(workload).largest
    always = records(workload)
    for role, one in _scoring_passes(workload, layout):
        casts = one.cached_casts if role in ("policy", "critic") else 0
        inside = part(role, "temporaries", one.forward_moment + casts)
        yield Moment(name=f"layers of the {role}", parts=(inside, always))
        if role not in ("critic", "reward model"):
            head = Head.of(workload, one.architecture, layout.scored, trained=False)
            logits = part(role, "logits", head.forward_moment)
            yield Moment(name=f"head of the {role}", parts=(logits, part(role, "temporaries", casts), always))


def _scoring_passes(workload: Workload, layout: Layout) -> Iterator[tuple[Role, Pass]]:
    if workload.old_pass:
        yield "policy", Pass.of(workload, workload.architecture, layout, adapters=workload.lora)
    if workload.critic in ("separate", "lora"):
        architecture = workload.critic_architecture or workload.architecture
        yield "critic", Pass.of(workload, architecture, layout, adapters=None)
    at_once = min(workload.rows, max(1, REWARD_TOKENS // workload.row_tokens))
    whole = lay_out(workload.row_tokens + 1, 0, [1] * at_once, prefix=0)  # their last token is computed, too
    for architecture in workload.reward_models:
        yield "reward model", Pass.of(workload, architecture, whole, adapters=None)
    for role, architecture in frozen_scorers(workload):
        yield role, Pass.of(workload, architecture, layout, adapters=None)


def _publish(workload: Workload) -> Iterator[Moment]:
    """Yield the moments of publishing. The largest matrix goes to a copy: it is cast and packed, then unpacked for
    comparison. A server gets it in its decoding precision. Then trainer and sampler both score the probe."""
    a = workload.architecture
    numbers = {"shared": 0, "copy": 4, "separate": BYTES[workload.precision]}[workload.engine]
    transfer = part("sampler", "weight transfer", numbers * a.vocabulary * a.hidden)
    yield Moment(name="delivery of the weights", parts=(transfer, records(workload)))
    layout = lay_out(PROBE_TOKENS, PROBE_SCORED_TOKENS, [1] * PROBE_ROWS, prefix=0)
    body = Pass.of(workload, a, layout, adapters=workload.lora)
    head = Head.of(workload, a, layout.scored, trained=False)
    probe = part("policy", "temporaries", max(body.forward_moment, head.forward_moment) + body.cached_casts)
    yield Moment(name="probe of the weights", parts=(probe, records(workload)))
    yield Moment(name="probe of the sampler", parts=(*_decoded_weights(workload), records(workload)))
