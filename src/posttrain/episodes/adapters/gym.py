r"""Environments of Gymnasium as text: `environment: gymnasium:FrozenLake-v1`.

An observation becomes a message, and a message an action:

    settings:
      actions: [left, down, right, up]    words that name the actions 0, 1, ... of a discrete space
      pattern: 'move: (\w+)'              finds the action: the last match of its first group that takes part, or of
                                          the whole; without a pattern, the last word that names an action counts
      show: text                          observation (unchanged) or text (what `render` prints, with render_mode ansi)
      misread: -0.1                       reward of a turn that names no action; a message says so, and nothing moves
      make: {is_slippery: false}          keyword arguments of gymnasium.make

The reward of a step is the reward of its turn, and the reward of a trajectory is their sum. The trajectory ends when
the environment reports terminated or truncated.
`reset` gets the column `seed` of the row, so that all trajectories of a group begin in the same state. Without this
column, each trajectory has a seed of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from posttrain.errors import ConfigError
from posttrain.rewards.load import Target

_MOST_SEED = 2**31


def opened(target: Target, settings: Mapping[str, Any], apart: Callable[[Callable[[], Any]], Any]) -> type:
    """Return the class for an environment of Gymnasium. ConfigError if Gymnasium is missing, if it does not know the
    environment, or if text cannot express the actions."""
    gymnasium = _imported()
    try:
        kind = apart(lambda: type(gymnasium.make(target.name, **settings.get("make", {})).action_space).__name__)
    except ConfigError as error:
        raise ConfigError(
            given=f"gymnasium.make({target.name!r}) raised {error.given}",
            allowed="a registered environment, and arguments that it accepts under environment.settings.make",
            fix="print(gymnasium.registry.keys()) lists the environments. To use a package that registers its "
            "own, name it before a colon: gymnasium:my_package:MyEnv-v0.",
        ) from None
    if kind not in ("Discrete", "Text"):
        raise ConfigError(
            given=f"{target.name} acts in a space {kind}, which words cannot express",
            allowed="environments with a discrete action space, or with texts as actions",
            fix="Wrap it in an environment whose actions are words, and register that one.",
        )
    return type("Gymnasium", (FromGymnasium,), {"name": target.name})


_CODE = re.compile(r"\x1b\[([0-9;]*)m")
_COLOURED = re.compile(r"((?:\x1b\[(?!0?m|39m|49m)[0-9;]+m)+)(.*?)(?:\x1b\[(?:0?|39|49)m)+")
"""Text between codes of a terminal's colours and the code that ends them."""
_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


class FromGymnasium:
    """An environment of Gymnasium with our interface."""

    name: str

    def __init__(
        self,
        actions: Sequence[str] | None = None,
        pattern: str | None = None,
        show: str = "observation",
        misread: float = 0.0,
        make: Mapping[str, Any] | None = None,
    ) -> None:
        gymnasium = _imported()
        if show not in ("observation", "text"):
            raise ValueError(f"show is {show!r}, but only observation and text are allowed")
        drawn = {"render_mode": "ansi"} if show == "text" else {}
        self._own = gymnasium.make(self.name, **drawn, **(make or {}))
        self._words = self._named(self._own.action_space, actions)
        self._pattern = None if pattern is None else re.compile(pattern, re.IGNORECASE)
        self._drawn, self._misread, self._last, self._steps = bool(drawn), misread, 0.0, 0

    def reset(self, row: Mapping[str, Any], seed: int) -> str:
        given = row.get("seed")
        observation, _ = self._own.reset(seed=seed % _MOST_SEED if given is None else int(given))
        self._own.action_space.seed(seed % _MOST_SEED)
        asked = f"Answer with one of: {', '.join(self._words)}." if self._words else "Answer with your action."
        return f"{self._shown(observation)}\n{asked}"

    def step(self, message: Mapping[str, Any]) -> str | None:
        action = self._action(message["content"])
        if action is None:
            self._last = self._misread
            allowed = f"one of: {', '.join(self._words)}" if self._words else "a text that the environment accepts"
            return f"This is not an action. Answer with {allowed}."
        observation, reward, terminated, truncated, _ = self._own.step(action)
        self._last = float(reward)
        self._steps += 1
        return None if terminated or truncated else self._shown(observation)

    def turn_reward(self) -> float:
        return self._last

    def reward(self) -> float:
        """Return 0: the turns carry all of the reward, and every trajectory has a reward."""
        return 0.0

    def metrics(self) -> dict[str, float]:
        return {"steps": float(self._steps)}

    def close(self) -> None:
        self._own.close()

    def _named(self, space: Any, actions: Sequence[str] | None) -> dict[str, Any]:
        """Return the words and the actions that they name; empty for a space of texts."""
        if not hasattr(space, "n"):
            return {}
        numbers = range(int(space.start), int(space.start) + int(space.n))
        words = [str(number) for number in numbers] if actions is None else [word.lower() for word in actions]
        if len(words) != len(numbers) or len(set(words)) != len(words):
            raise ValueError(
                f"actions has {len(set(words))} different words, but {self.name} has {len(numbers)} actions"
            )
        return dict(zip(words, numbers, strict=True))

    def _action(self, said: str) -> Any:
        """Return the action that a turn names; None if it names none."""
        if self._pattern is not None:
            matches = list(self._pattern.finditer(said))
            said = _held(matches[-1]) if matches else ""
        if not self._words:
            return said.strip() if said.strip() in self._own.action_space else None
        either = "|".join(map(re.escape, sorted(self._words, key=len, reverse=True)))
        whole = rf"(?<![\w-])(?<!\d\.)(?:{either})(?![\w-])(?!\.\d)"  # neither left-up nor 1.5 names an action
        named = re.findall(whole, said.lower())
        return self._words[named[-1]] if named else None

    def _shown(self, observation: Any) -> str:
        if self._drawn:
            return _plain(str(self._own.render()))
        return observation if isinstance(observation, str) else str(_numbers(observation))


def _held(match: re.Match[str]) -> str:
    """Return the text of the first group that took part in the match; without one, the whole match."""
    return next((group for group in match.groups() if group is not None), match[0])


def _plain(drawn: str) -> str:
    """Return a rendering without terminal colours. Coloured text gets brackets instead, with the names of the colours
    if the rendering has several: they may tell a passenger from a destination."""
    several = len({code for codes, _ in _COLOURED.findall(drawn) for code in _CODE.findall(codes)}) > 1

    def marked(found: re.Match[str]) -> str:
        names = [_colour(code) for code in _CODE.findall(found[1])] if several else []
        return f"[{' '.join([found[2], *names]).strip() if names else found[2]}]"

    return _CODE.sub("", _COLOURED.sub(marked, drawn)).strip("\n")


def _colour(code: str) -> str:
    """Return the name of a colour, or its code if it has no name."""
    numbers = [int(number) for number in code.split(";") if number]
    if 38 in numbers or 48 in numbers:  # one of 256 colours, or of 16 million
        return code
    named = [_COLOURS[number % 10] for number in numbers if number // 10 in (3, 4, 9, 10) and number % 10 < 8]
    return named[0] if len(named) == 1 else code


def _numbers(observation: Any) -> Any:
    """Return an observation with numbers, lists and tuples in place of NumPy's arrays and numbers."""
    if isinstance(observation, Mapping):
        return {name: _numbers(value) for name, value in observation.items()}
    if isinstance(observation, tuple):
        return tuple(map(_numbers, observation))
    return observation.tolist() if hasattr(observation, "tolist") else observation


def _imported() -> Any:
    try:
        import gymnasium  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError(
            given=f"environment: gymnasium:... needs the package gymnasium ({error})",
            allowed="your own environments, which do not need it",
            fix='pip install "posttrain[environments]"',
        ) from None
    return gymnasium
