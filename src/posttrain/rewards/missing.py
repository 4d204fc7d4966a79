"""The columns of the rows, and the error for a column that a reward needs and the rows lack."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from posttrain.errors import ConfigError
from posttrain.rewards.load import suggestion

if TYPE_CHECKING:  # the records import torch, which a reward worker does not need
    from posttrain.types import Prompt

HELD_OUT = "held-out data"
"""The name, in errors, of the prompts that a run uses for its own measurements."""


def columns_known(prompts: Iterable[Prompt]) -> tuple[str, ...]:
    """The columns of these prompts and of the other rows of their data. Rewards receive all of them."""
    return tuple(dict.fromkeys(name for prompt in prompts for name in (*prompt.columns, *prompt.columns_of_data)))


def missing_column(needs: str, name: str, available: Sequence[str], *, what: str, ways: Sequence[str]) -> ConfigError:
    """The error for a missing column. `needs` says who needs it, `what` names the rows ("" if unknown), `ways` fix it.

    >>> print(missing_column("judge \\"j\\" asks for", "who", ["answer"], what=HELD_OUT, ways=["rename it"]))
    held-out data: judge "j" asks for the column 'who', but the data does not have it; allowed: the columns answer.
      Add the column to the held-out data (data.eval), or rename it.
    """
    where = f"{what}: " if what else ""
    ways = ["add the column to the held-out data (data.eval)", *ways] if what == HELD_OUT else ways
    fix = ", or ".join(filter(None, (", ".join(ways[:-1]), ways[-1])))
    return ConfigError(
        given=f"{where}{needs} the column {name!r}, but the data does not have it{suggestion(name, available)}",
        allowed=f"the columns {', '.join(available)}" if available else "none: the rows hold only prompts",
        fix=f"{fix[0].upper()}{fix[1:]}.",
    )
