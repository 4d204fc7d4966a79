"""The process in which a reward is watched: `python -m posttrain.rewards.audit.probe REQUEST REPORT SECONDS`.

It loads the reward, makes the calls of the request under one of PROBES and writes a report. A watchdog (faulthandler)
ends it after SECONDS, whatever the reward does.
"""

from __future__ import annotations

import faulthandler
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from posttrain import wire
from posttrain.rewards.audit import effects, safety
from posttrain.rewards.audit.calling import Calling
from posttrain.rewards.calls import own_runner
from posttrain.rewards.load import Target, load


def scores(calling: Calling) -> dict[str, Any]:
    """The value of each completion; None if it has none."""
    with own_runner() as runner:
        return {"values": [value for outcome in calling.run(runner) for value in calling.values(outcome)]}


PROBES: Mapping[str, Callable[[Calling], Mapping[str, Any]]] = {
    "scores": scores,
    "safety": safety.probe,
    "effects": effects.probe,
}


def main() -> None:
    asked, told, seconds = sys.argv[1:]
    faulthandler.dump_traceback_later(float(seconds), exit=True)
    request = next(wire.decode(bytearray(Path(asked).read_bytes())))
    target = Target(**request["target"])
    calling = Calling(
        function=load(target),
        target=target,
        calls=request["calls"],
        settings=request["settings"],
        is_async=request["is_async"],
        batch=request["batch"],
        timeout=request["timeout"],
        options=request["options"],
    )
    report = PROBES[request["probe"]](calling)
    Path(told).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
