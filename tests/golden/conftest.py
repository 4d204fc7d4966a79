"""Golden runs: the metrics of each step on file, to catch changes that no unit test covers.

`pytest tests/golden --update-golden` writes the files again. Leave out `-m "not slow"`, since most whole runs are slow.
The commit says why the numbers moved.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

Steps = Sequence[Mapping[str, float]]

FOLDER = Path(__file__).parent
MEASURED = ("loss", "reward", "grad_norm", "entropy")
DIGITS = 9


@dataclass(frozen=True)
class Golden:
    """The numbers of one run: metric -> one value per step."""

    file: Path
    update: bool = False
    """Whether --update-golden was given."""

    def check(self, steps: Steps, *, rtol: float, atol: float, no_drift: bool = True) -> None:
        """Compare after writing the file, if an update was requested. Only the run that defines the file calls this."""
        if self.update:
            lines = [f'  "{name}": {json.dumps(values)}' for name, values in series(steps).items()]
            self.file.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        self.compare(steps, rtol=rtol, atol=atol, no_drift=no_drift)

    def compare(
        self, steps: Steps, *, rtol: float, atol: float, no_drift: bool = True, first: int | None = None
    ) -> None:
        """Compare each number with the file, within `atol + rtol * |expected|`. With `first`, compare only that many
        steps.

        With `no_drift`, the differences must nearly average to zero, like rounding errors: the limit of their mean is
        smaller by the root of the number of steps. A small bias then cannot hide in the tolerance.
        """
        assert self.file.exists(), f"{self.file.name} is missing; pytest tests/golden -m '' --update-golden writes it"
        expected = {name: values[:first] for name, values in json.loads(self.file.read_text()).items()}
        found = series(steps)
        assert {name: len(numbers) for name, numbers in found.items()} == {n: len(v) for n, v in expected.items()}
        for name, numbers in expected.items():
            differences = [new - old for new, old in zip(found[name], numbers, strict=True)]
            allowed = [atol + rtol * abs(number) for number in numbers]
            for step, (difference, limit) in enumerate(zip(differences, allowed, strict=True), start=1):
                assert abs(difference) <= limit, (
                    f"{name} of step {step} is {found[name][step - 1]}, on file {numbers[step - 1]}"
                )
            drift, limit = mean(differences), mean(allowed) / math.sqrt(len(numbers))
            assert not no_drift or abs(drift) <= limit, f"{name} drifts by {drift:+.2g}, allowed {limit:.2g}"


def series(steps: Steps) -> dict[str, list[float]]:
    """Return the metrics that are kept of a run. A supervised run has no reward."""
    names = [name for name in MEASURED if name in steps[0]]
    return {name: [float(f"{step[name]:.{DIGITS}g}") for step in steps] for name in names}


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str], Golden]:
    """Return a function for `golden("grpo").check(steps, rtol=..., atol=...)`."""
    update = bool(request.config.getoption("--update-golden"))
    return lambda name: Golden(FOLDER / f"{name}.json", update)
