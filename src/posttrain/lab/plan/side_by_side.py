"""A forecast for sampling while training: steps per hour, staleness of tokens, and idle times.

The controller of real runs makes the decisions, in virtual time (`controller/simulate.py`). The plan gives the times of
engines and trainer. The lengths of answers are assumed to be log-normal with a mean and a spread (sigma), truncated at
the limit.

`train.max_staleness` makes the controller neither wait nor drop anything. So one simulation shows all ages, and the
tokens that each bound would mask. Simulations take most of a plan's time, so none is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from posttrain.config import RunConfig
from posttrain.control_groups import cores
from posttrain.controller.messages import Limits
from posttrain.controller.simulate import Simulated, simulate
from posttrain.controller.workload import Workload as Simulation
from posttrain.lab.plan.hardware import Hardware
from posttrain.lab.plan.records import Workload
from posttrain.lab.plan.timing import cost_of_step, sampling_work

STEPS, ROWS = 60, 32
"""Maximum steps, and rows per step, of a simulation. Larger steps are scaled down to fewer prompts and slots, and
slower rows."""
MOST_AHEAD = 8
NO_BOUND = 1 << 30
MEAN_SHARE = 4
"""If the mean length of answers is not given, it is assumed to be the limit divided by this number."""
SPREAD = 1.0
NEARLY = 0.95
"""Share of the steps per hour with the furthest lead that counts as sufficient."""


@dataclass(frozen=True, kw_only=True)
class SideBySide:
    """The forecast of a run whose engines sample while it trains."""

    engines: int
    steps_per_hour: float
    in_turns: float
    """Steps per hour if the same engines and training devices worked in turns."""
    mean_age: float
    p95_age: int
    oldest: int
    """Age of the oldest trained token, in versions."""
    masked: float
    """Share of tokens older than train.max_staleness."""
    trainer_idle: float
    engines_idle: float
    """Share of time that engines are idle."""
    enough_ahead: int
    """The smallest train.run_ahead with nearly as many steps per hour as the furthest lead."""
    enough_staleness: int
    """The smallest train.max_staleness that masks at most 1% of the tokens."""
    mean_tokens: int
    longest_tokens: int
    spread: float
    steps: int
    """Number of simulated steps."""
    threads: tuple[int, int] | None
    """Threads of the trainer and of each engine, if they share a processor."""
    cores: int | None
    """Cores of this processor. If there are fewer cores than threads that work at the same time, all of them are
    slower."""


def side_by_side(config: RunConfig, workload: Workload, hardware: Hardware, spread: float | None) -> SideBySide | None:
    """Simulate a run whose engines sample while it trains. None if the training process samples."""
    engines = config.rollout.num_engines
    if not engines:
        return None
    from posttrain.train.fleet import limits_of, threads_of  # imports transformers, which takes seconds

    mean = workload.mean_completion_tokens or max(1, workload.completion_tokens // MEAN_SHARE)
    workload = replace(workload, mean_completion_tokens=mean, turns=None)  # turns: simulated as one answer
    scaled = Scaled(
        config,
        limits_of(config, greedy="greedy_reward" in workload.needs),
        workload,
        hardware,
        SPREAD if spread is None else spread,
    )
    threads = threads_of(config) if workload.device == "cpu" and config.cluster is None else None
    limits, beside = scaled.limits, scaled.simulation(*slowdown(config, workload))

    @cache
    def with_lead(ahead: int) -> Simulated:
        return simulate(replace(limits, run_ahead=ahead), beside, seed=config.seed)

    run, furthest = with_lead(limits.run_ahead), with_lead(MOST_AHEAD).steps_per_hour
    leads = (lead for lead in range(1, MOST_AHEAD) if with_lead(lead).steps_per_hour >= NEARLY * furthest)
    unbounded = run if not run.masked else simulate(replace(limits, max_staleness=NO_BOUND), beside, seed=config.seed)
    masks_one_in_100 = unbounded.lag_quantile(0.99) - config.train.publish_every + 1
    turns = config.model_copy(update={"train": config.train.model_copy(update={"run_ahead": 0})})
    alone = scaled.simulation(*slowdown(turns, workload))
    in_turns = with_lead(0) if alone == beside else simulate(replace(limits, run_ahead=0), alone, seed=config.seed)
    return SideBySide(
        engines=engines,
        steps_per_hour=run.steps_per_hour,
        in_turns=in_turns.steps_per_hour,
        mean_age=run.mean_lag,
        p95_age=run.lag_quantile(0.95),
        oldest=run.largest_lag,
        masked=run.masked,
        trainer_idle=run.trainer_idle,
        engines_idle=run.engines_idle,
        enough_ahead=next(leads, MOST_AHEAD),
        enough_staleness=max(config.train.lead, masks_one_in_100),
        mean_tokens=mean,
        longest_tokens=workload.completion_tokens,
        spread=scaled.spread,
        steps=limits.last_version,
        threads=threads,
        cores=None if threads is None else cores(),
    )


def slowdown(config: RunConfig, workload: Workload) -> tuple[float, float]:
    """Return how much slower than a whole device the trainer and each engine are.

    On a CPU they share the cores. Threads that work at the same time get at most all cores together: if there are more
    threads, each one is slower. In turns, the trainer has all cores, and then the engines do.
    """
    from posttrain.train.fleet import threads_of

    if workload.device != "cpu":
        return 1.0, 1.0
    (trainer, engine), ahead = threads_of(config), config.train.lead > 0
    if config.cluster is not None:
        return 1.0, cores() / engine
    working = trainer * ahead + config.rollout.num_engines * engine
    crowded = max(1.0, working / cores())
    return cores() / trainer * crowded if ahead else 1.0, cores() / engine * crowded


@dataclass(frozen=True)
class Scaled:
    """A run scaled down so that its simulation takes a second."""

    config: RunConfig
    whole: Limits
    workload: Workload
    hardware: Hardware
    spread: float

    @property
    def limits(self) -> Limits:
        """Limits of the simulated run: fewer groups and steps, and trajectories as single answers."""
        prompts = min(self.whole.prompts_per_step, max(1, ROWS // self.whole.group_size))
        last = min(STEPS, self.whole.last_version)
        return replace(self.whole, prompts_per_step=prompts, last_version=last, turns=False)

    def simulation(self, trainer: float, engine: float) -> Simulation:
        """Return the simulation. `trainer` and `engine` are slowdown factors against having a whole device."""
        w, mean = self.workload, self.workload.mean_completion_tokens or 1
        scale = w.prompts_per_step / self.limits.prompts_per_step
        slots = max(1, min(w.max_batch_rows, w.rows * (1 + self.config.train.lead)))
        one, all_rows = self._token_seconds(1), self._token_seconds(slots)
        each = max(0.0, all_rows - one) / max(1, slots - 1)
        cost = cost_of_step(w, self.hardware)
        return Simulation(
            engines=self.config.rollout.num_engines,
            slots=max(1, round(slots / scale)),
            seconds_per_token=engine * max(0.0, one - each),
            seconds_per_token_and_row=engine * each * scale,
            mean_tokens=mean,
            sigma=self.spread,
            longest=w.completion_tokens / mean,
            train_seconds=trainer * (cost.of("score") + cost.of("train")),
            publish_seconds=0.0,  # the plan counts it in training
            load_seconds=engine * self._seconds(slots, w.prompt_tokens + mean // 2, 1),
        )

    def _token_seconds(self, rows: int) -> float:
        """Return the seconds to decode one token for each row."""
        mean = self.workload.mean_completion_tokens or 1
        return self._seconds(rows, self.workload.prompt_tokens, mean) / mean

    def _seconds(self, rows: int, prompt_tokens: int, answer_tokens: int) -> float:
        """Return the sampling seconds of one engine with its own weights."""
        alone = replace(
            self.workload, ranks=1, samplers=None, sharding="none", engine="copy", prompt_tokens=prompt_tokens
        )
        work = sampling_work(alone, prompts=1, per_prompt=rows, answer_tokens=answer_tokens)
        return work.seconds(self.hardware, alone.precision)
