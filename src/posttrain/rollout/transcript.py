"""The record of rows that are decoded together.

B rows, B' of them still in the batch, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from posttrain.types import FinishReason

LEAVE_WHEN_ONE_IN = 8
"""Finished rows leave the batch when they are one in this many: earlier costs copies, later costs computing them."""

_REASONS: tuple[FinishReason, ...] = ("length", "eos", "stop")


class Transcript:
    """What the rows of a batch have generated, and which of them are still decoded.

    B' of the B rows are in the batch: `rows_B`, numbers into the full record, shrinks as rows leave.
    """

    def __init__(self, num_rows: int, max_length: int, device: torch.device) -> None:
        self.rows_B = torch.arange(num_rows, device=device)
        self._length = 0
        self._ids_BT = torch.zeros(num_rows, max_length, dtype=torch.long, device=device)
        self._logprobs_BT = torch.zeros(num_rows, max_length, device=device)
        self._lengths_B = torch.full((num_rows,), max_length, device=device)
        self._reasons_B = torch.full((num_rows,), _REASONS.index("length"), device=device)
        self._ended_B = torch.zeros(num_rows, dtype=torch.bool, device=device)

    def append(self, ids_B: Tensor, logprobs_B: Tensor) -> None:
        """One token of every row in the batch; what a finished row still gets is ignored."""
        self._ids_BT[self.rows_B, self._length] = ids_B
        self._logprobs_BT[self.rows_B, self._length] = logprobs_B
        self._length += 1

    def ids_so_far(self) -> Tensor:
        """`[B', t]` ids of the rows in the batch."""
        return self._ids_BT[self.rows_B, : self._length]

    def end(self, here_B: Tensor, reason: FinishReason) -> None:
        """These rows of the batch end with their last token, unless they had ended before."""
        ending = self.rows_B[here_B & ~self._ended_B]
        self._lengths_B[ending] = self._length
        self._reasons_B[ending] = _REASONS.index(reason)
        self._ended_B = self._ended_B | here_B

    def let_finished_leave(self) -> Tensor | None:
        """Which rows of the batch stay, when so many have ended that the others should go on alone."""
        ended = int(self._ended_B.sum())
        if ended == 0 or ended * LEAVE_WHEN_ONE_IN < len(self._ended_B):
            return None
        staying_B = (~self._ended_B).nonzero().squeeze(-1)
        self.rows_B, self._ended_B = self.rows_B[staying_B], self._ended_B[staying_B]
        return staying_B

    def read(self) -> Iterator[tuple[tuple[int, ...], tuple[float, ...], FinishReason]]:
        """Ids, log-probabilities and finish reason of every row, those that left the batch included."""
        columns = (self._ids_BT, self._logprobs_BT, self._lengths_B, self._reasons_B)
        for ids, logprobs, length, reason in zip(*(column.tolist() for column in columns), strict=True):
            yield tuple(ids[:length]), tuple(logprobs[:length]), _REASONS[reason]
