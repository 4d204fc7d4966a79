"""Measure the second step of cases, in this process.

    python benchmarks/planning/run.py live NAME ...     live bytes of tensors in each phase
    python benchmarks/planning/run.py resident NAME     anonymous resident memory of a process without the profiler

It prints one line of JSON for each case.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from posttrain.config import check, load_config, to_yaml
from posttrain.models.compute import dtype_name
from posttrain.report.terminal import TerminalView
from posttrain.store.run_store import RunStore
from posttrain.train import api
from posttrain.train.setup import set_up

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from planning.cases import CASES, Case, config_of, write_inputs  # noqa: E402
from planning.meter import LiveBytes, Resident  # noqa: E402


def measure(case: Case, *, resident: bool = False) -> dict[str, Any]:
    """Run and measure one case; also returns how the run chose to compute products."""
    with tempfile.TemporaryDirectory() as place, ExitStack() as resources:
        write_inputs(case, Path(place))
        meter, watch = LiveBytes(), Resident()
        with watch.watching() if resident else meter.measuring():
            run = started(config_of(case, Path(place)), resources)
            with meter.span("first step"):
                one_step(run, meter=None)
            with meter.span("other"):
                one_step(run, meter=meter)
        compute = run.trainer.loaded.compute
        computing = {
            "precision": dtype_name(compute.dtype),
            "onednn": compute.matmul == "onednn",
            "packed": compute.sampler == "packed",
        }
    found = {"resident": watch.peak - watch.start} if resident else {"measured": dict(meter.peaks())}
    return {"computing": computing, **found}


def started(config: dict[str, Any], resources: ExitStack) -> Any:
    """A run before its first step."""
    resolved = load_config(config)
    check(resolved.config)
    store = RunStore.create(Path(config["output"]), to_yaml(resolved))
    return set_up(resolved, store, TerminalView(quiet=True), resources)


def one_step(run: Any, meter: LiveBytes | None) -> None:
    """Do one step like `posttrain train`. With a meter, its phases are marked."""
    if meter is None:
        api.one_step(run)
        return
    with (
        marked(run.feed, "take", "generate", meter),
        marked(run.trainer, "publish", "publish", meter),
        phases_of(run, meter),
    ):
        api.one_step(run)


@contextmanager
def phases_of(run: Any, meter: LiveBytes) -> Iterator[None]:
    """Mark the phases of a step: the passes before the first update are `score`, and the updates are `train`."""
    advantages, update = run.trainer.advantages, run.trainer.update

    class Scored:
        def __call__(self, experience: Any) -> Any:
            with meter.span("score"):
                return advantages(experience)

        def __getattr__(self, name: str) -> Any:
            return getattr(advantages, name)

    run.trainer.advantages, run.trainer.update = Scored(), spanned(update, "train", meter)
    try:
        yield
    finally:
        run.trainer.advantages, run.trainer.update = advantages, update


@contextmanager
def marked(owner: Any, name: str, span: str, meter: LiveBytes) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, spanned(before, span, meter))
    try:
        yield
    finally:
        setattr(owner, name, before)


def spanned(function: Callable[..., Any], span: str, meter: LiveBytes) -> Callable[..., Any]:
    def run(*given: Any, **settings: Any) -> Any:
        with meter.span(span):
            return function(*given, **settings)

    return run


def main(what: str, *names: str) -> None:
    for name in names:
        case = next(case for case in CASES if case.full_name == name)
        print(json.dumps({"case": name, **measure(case, resident=what == "resident")}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
