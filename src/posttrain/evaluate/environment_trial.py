"""Tries an environment and its tools before a run. Scripted players say nothing, say nonsense, or call every tool.

Such a player has no skill: a reward that it earns is given away, an answer that it hears is leaked, and an error that
it causes would also occur in the first step of a run. `posttrain reward test` and `audit` do these checks.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from posttrain.data.prompts import plain_prompts
from posttrain.data.split import first_training_rows
from posttrain.episodes.acting import Acting
from posttrain.episodes.bridge import call
from posttrain.rewards.audit.finding import AuditReport, Finding, Status, quote
from posttrain.verify.mathematics.places import final_of

if TYPE_CHECKING:
    from posttrain.config import RunConfig
    from posttrain.episodes.sessions import Sessions
    from posttrain.types import Prompt

ROWS, TURNS = 8, 4
"""Rows that each player plays, and maximum turns of a game."""
GIVEN_AWAY, LEAKS, SURELY_LEAKS = 0.02, 0.1, 0.5
"""Limits. The first: share of games with a full reward but no right turn. The others: share of rows whose own answer
was told, minus the share of other answers that were told by chance; above them the check warns, or fails."""
WRONG_IN_ITSELF = ("ImportError", "ModuleNotFoundError", "NameError", "AttributeError", "NotImplementedError")
"""Errors that are bugs of the tool: no argument can cause them."""
SHOWN = 3


@dataclass
class Game:
    """The result of one player's game on one row."""

    row: Prompt
    heard: list[str] = field(default_factory=list)
    results: list[tuple[str, str, bool]] = field(default_factory=list)
    """(tool, result text, is it an error?) of each call."""
    reward: float | None = None
    """Sum of the rewards of its turns and at the end; None if there was none."""
    done: bool = False
    failure: str = ""
    seconds: list[float] = field(default_factory=list)
    """Seconds until the environment answered, for each turn."""

    @property
    def story(self) -> tuple[Any, ...]:
        return tuple(self.heard), tuple(self.results), self.reward, self.done, self.failure


Calls = Sequence[tuple[str, Mapping[str, Any]]]


def play(sessions: Sessions, row: Prompt, turns: Sequence[tuple[str, Calls]], seed: int = 0) -> Game:
    """Play one game with these turns, each with its tool calls."""
    game, session = Game(row), sessions.open(seed)
    plain = row.plain if row.plain is not None else [dict(message) for message in row.messages or ()]
    prompt = [dict(message) for message in row.messages or ({"role": "user", "content": row.plain},)]

    def ask(do: str, **arguments: Any) -> Mapping[str, Any] | None:
        sessions.ask(session, do, **arguments)
        reply = sessions.wait(session)
        if do == "step":
            game.seconds.append(reply.seconds)
        if reply.kind == "value":
            return reply.value
        game.failure = f"{do}: {reply.message}"
        return None

    try:
        value = ask("reset", row={**row.columns, "prompt": plain}, prompt=prompt)
        _hear(game, value)
        for content, calls in turns if value is not None else ():
            made = [call(name, arguments, number) for number, (name, arguments) in enumerate(calls)]
            message = {"role": "assistant", "content": content, **({"tool_calls": made} if made else {})}
            value = ask("step", message=message, calls=[[name, dict(arguments), ""] for name, arguments in calls])
            _hear(game, value, [name for name, _ in calls])
            if value is None:
                game.results += [(name, game.failure, True) for name, _ in calls]
            if value is None or game.done:
                break
        if value is not None and not game.done:
            value = ask("finish")
        if value is not None and "reward" in value:
            game.reward = (game.reward or 0.0) + value["reward"]
    finally:
        sessions.end(session)
    return game


def _hear(game: Game, value: Mapping[str, Any] | None, called: Sequence[str] = ()) -> None:
    if value is None:
        return
    game.done = bool(value.get("done"))
    if "turn_reward" in value:
        game.reward = (game.reward or 0.0) + value["turn_reward"]
    messages = [*value.get("prompt", ()), *value.get("messages", ())]
    game.heard += [str(message["content"]) for message in messages]
    wrong = value.get("errors", ())
    for number, name in enumerate(called[: len(messages)]):
        text = str(messages[number]["content"])
        game.results.append((name, text, bool(wrong[number]) if number < len(wrong) else text.startswith("error:")))


# --- the players ------------------------------------------------------------------------------------------------------


def _made_up(schema: Mapping[str, Any], text: str, number: int) -> dict[str, Any]:
    """Return meaningless arguments that fit a schema."""
    parameters = schema["function"].get("parameters", {})
    kinds = {
        "string": text,
        "integer": number,
        "number": float(number),
        "boolean": bool(number),
        "array": [],
        "object": {},
    }
    found = {}
    for name in parameters.get("required", parameters.get("properties", {})):
        own = parameters["properties"][name]
        kind = own.get("type", "string")
        found[name] = own["enum"][0] if own.get("enum") else kinds.get(kind if isinstance(kind, str) else kind[0], text)
    return found


def _callers(schemas: Sequence[Mapping[str, Any]]) -> list[tuple[str, Calls]]:
    """Return turns that call each tool with two sets of arguments."""
    return [
        ("", [(schema["function"]["name"], _made_up(schema, text, number))])
        for schema in schemas
        for text, number in (("x", 0), ("1", 1))
    ]


# --- the checks -------------------------------------------------------------------------------------------------------


def try_environment(
    sessions: Sessions, rows: Sequence[Prompt], *, max_turns: int, max_unscored: float
) -> list[Finding]:
    """Check the environment and the tools before a run, on the first `ROWS` rows."""
    rows, turns = rows[:ROWS], min(TURNS, max_turns)
    silent, nonsense = [("", ())] * turns, [("I do not know.", ())] * turns
    has_environment = sessions.setup.environment is not None
    played = enumerate((row, turns) for turns in (silent, nonsense) for row in rows)
    games = [play(sessions, row, turns, seed) for seed, (row, turns) in played] if has_environment else []
    calling = [play(sessions, row, [turn]) for turn in _callers(sessions.schemas) for row in rows[:2]]
    findings = []
    if has_environment:
        again = [play(sessions, row, nonsense, seed) for seed, row in enumerate(rows, len(rows))]
        findings += [
            _works(games, max_unscored),
            *([_ends(games, turns, max_turns)] if sessions.speaks else []),
            _gives_nothing_away(games),
            _is_the_same_again(games[len(rows) :], again),
        ]
    findings += [_tool(schema["function"]["name"], calling) for schema in sessions.schemas]
    sessions.settle()
    return [*findings, _answers_in_time([*games, *calling]), _leaks([*games, *calling], rows)]


def _finding(
    check: str, status: Status, measured: float | None, limit: str, text: str, examples: Sequence[str]
) -> Finding:
    return Finding(
        check=check, status=status, measured=measured, limit=limit, text=text, examples=tuple(examples)[:SHOWN]
    )


def _works(games: Sequence[Game], limit: float) -> Finding:
    failed = [game for game in games if game.failure]
    share = len(failed) / len(games)
    return _finding(
        "environment works",
        "fail" if share > limit else "warn" if failed else "ok",
        share,
        f"at most {limit:.0%} of the games fail (guards.max_unscored)",
        f"{len(failed)} of {len(games)} games failed",
        [f"{game.row.origin or 'a row'}: {game.failure}" for game in failed],
    )


def _ends(games: Sequence[Game], turns: int, max_turns: int) -> Finding:
    played = [game for game in games if not game.failure]
    ended = sum(game.done for game in played)
    endless = bool(played) and not ended
    return _finding(
        "environment ends",
        "skipped" if not played else "warn" if endless else "ok",
        ended / len(played) if played else None,
        "at least one game ends before the turn limit",
        f"{ended} of {len(played)} games ended within {turns} turns",
        [f"endless games are cut after {max_turns} turns (sampling.max_turns) and count as truncated"],
    )


def _gives_nothing_away(games: Sequence[Game]) -> Finding:
    rewards = [game.reward for game in games if game.reward is not None]
    full = [game for game in games if game.reward is not None and game.reward >= 1]
    share = len(full) / len(rewards) if rewards else None
    return _finding(
        "nothing is given away",
        "skipped" if share is None else "fail" if share > GIVEN_AWAY else "ok",
        share,
        f"at most {GIVEN_AWAY:.0%} of the players that say nothing or nonsense get 1 or more",
        "no reward was given"
        if share is None
        else f"{len(full)} of {len(rewards)} got 1 or more, mean {sum(rewards) / len(rewards):.3g}",
        [f"{game.row.origin or 'a row'}: reward {game.reward:g} for no right turn" for game in full],
    )


def _is_the_same_again(games: Sequence[Game], again: Sequence[Game]) -> Finding:
    differ = [(one, other) for one, other in zip(games, again, strict=True) if one.story != other.story]
    return _finding(
        "environment repeats",
        "warn" if differ else "ok",
        len(differ) / len(games),
        "the same seed and the same turns give the same answers",
        f"{len(differ)} of {len(games)} games went differently when they were repeated",
        [f"{quote(one.heard[-1:])}, then {quote(other.heard[-1:])}" for one, other in differ],
    )


def _tool(name: str, games: Sequence[Game]) -> Finding:
    """Does any call with made-up arguments return a result?"""
    results = [(text, wrong) for game in games for called, text, wrong in game.results if called == name]
    errors = [text for text, wrong in results if wrong]
    in_itself = [text for text in errors if text.removeprefix("error: ").startswith(WRONG_IN_ITSELF)]
    hung = [text for text in errors if not text.startswith("error:")]
    status: Status = "ok" if len(errors) < len(results) else "fail" if in_itself or hung else "warn"
    return _finding(
        f"tool {name}",
        status,
        len(errors) / len(results) if results else None,
        "at least one call returns a result",
        f"{len(errors)} of {len(results)} calls with made-up arguments had no effect",
        [*dict.fromkeys(map(quote, [*hung, *in_itself, *errors]))],
    )


def _answers_in_time(games: Sequence[Game]) -> Finding:
    """Report the value for `posttrain plan --call-seconds`. Here, the games are played one after another."""
    seconds = [one for game in games for one in game.seconds]
    mean, slowest = statistics.fmean(seconds or [0.0]), max(seconds, default=0.0)
    return _finding(
        "seconds per answer",
        "ok" if seconds else "skipped",
        mean if seconds else None,
        "the value for `posttrain plan --call-seconds`",
        f"{mean:.3g} on average, {slowest:.3g} at most, of {len(seconds)} turns",
        [],
    )


def _leaks(games: Sequence[Game], rows: Sequence[Prompt]) -> Finding:
    """Does a player hear the answer to its own row more often than the answers to other rows?"""
    golds = {id(row): final_of(row.columns.get("answer")).strip() for row in rows}
    known = [game for game in games if golds[id(game.row)] and not _says(_asked(game.row), golds[id(game.row)])]
    others = [gold for gold in golds.values() if gold]
    told = [game for game in known if any(_says(text, golds[id(game.row)]) for text in game.heard)]
    by_chance = [
        any(_says(text, gold) for text in game.heard)
        for game in known
        for gold in others
        if gold != golds[id(game.row)]
    ]
    rows_told = len({id(game.row) for game in told}) / len({id(game.row) for game in known}) if known else 0.0
    share = max(0.0, rows_told - (sum(by_chance) / len(by_chance) if by_chance else 0.0))
    examples = [
        f"{game.row.origin or 'a row'}, whose answer is {quote(golds[id(game.row)])}: "
        + quote(next(text for text in game.heard if _says(text, golds[id(game.row)])))
        for game in told
    ]
    return _finding(
        "answers are kept",
        "skipped" if not known else "fail" if share > SURELY_LEAKS else "warn" if share > LEAKS else "ok",
        share if known else None,
        f"in at most {LEAKS:.0%} of the rows, replies give the answer away to a player that did not ask for it",
        f"in {rows_told:.0%} of the rows, replies stated the answer"
        if known
        else "no row has an answer that its prompt does not already state",
        examples,
    )


def _asked(row: Prompt) -> str:
    return " ".join(str(message.get("content")) for message in row.messages or ({"content": row.plain},))


def _says(text: str, gold: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", text) is not None


# --- from a config ----------------------------------------------------------------------------------------------------


def audit_environment(config: RunConfig, progress: Callable[[str], None] = lambda what: None) -> AuditReport | None:
    """Audit a run's environment and tools on the first rows; None if the run has only single-turn answers."""
    if not config.has_turns:
        return None
    rows = plain_prompts(first_training_rows(config.data, config.seed, ROWS), config.data)
    start = time.perf_counter()
    with ExitStack() as stack:
        acting = Acting.of(config, stack)
        assert acting is not None, "the config has turns"
        progress("the environment and the tools: games of scripted players")
        limits = {"max_turns": config.sampling.max_turns, "max_unscored": config.guards.max_unscored}
        checks = try_environment(acting.sessions, rows, **limits)
        tools = [str(schema["function"]["name"]) for schema in acting.schemas]
    named = config.environment.function or ", ".join(tools)
    return AuditReport(
        reward=named,
        kind="environment",
        why=f"it answers turns; tools: {', '.join(tools) or 'none'}",
        rows=len(rows[:ROWS]),
        reads=(),
        checks=checks,
        seconds=time.perf_counter() - start,
    )
