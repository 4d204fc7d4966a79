"""Environments that reward single turns."""

from __future__ import annotations

from typing import Any


class Pays:
    """Ends after `turns` turns; a turn earns 0.1 for each of its letters, and the end 1."""

    def __init__(self, turns: int = 3, pays: bool = True) -> None:
        self.turns, self.pays = turns, pays

    def reset(self, row: dict[str, Any]) -> None:
        self.said: list[str] = []

    def step(self, message: dict[str, Any]) -> str | None:
        self.said.append(message["content"])
        return "a" if len(self.said) < self.turns else None

    def turn_reward(self) -> float | None:
        return len(self.said[-1].replace(" ", "")) / 10 if self.pays else None

    def reward(self) -> float:
        return 1.0


class PaysTurnsAlone:
    """An async environment with no reward at the end, and no reward for every second turn."""

    async def reset(self, row: dict[str, Any]) -> None:
        self.turns = 0

    async def step(self, message: dict[str, Any]) -> str | None:
        self.turns += 1
        return "a" if self.turns < 4 else None

    async def turn_reward(self) -> float | None:
        return 0.5 if self.turns % 2 else None


class PaysNan:
    def step(self, message: dict[str, Any]) -> str | None:
        return None

    def turn_reward(self) -> float:
        return float("nan")
