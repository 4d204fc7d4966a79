"""The names that other libraries use for our settings, and the message for an unknown key.

names.yaml has the names of TRL (including the TrainingArguments that it inherits), verl, OpenRLHF and AReaL's
off-policy loss. Each name leads to our key, or to a sentence that says why there is none.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_FILE = Path(__file__).with_name("names.yaml")
COMMON, FAMILIES, SAME = "Common", "families", "same"
"""Sections of the file: names of no single project, prefixes of names, and names that our settings share."""


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the name that was probably meant. Swapped letters are a better match than a different letter.

    >>> nearest("gpro", ["gspo", "grpo"])
    'grpo'
    """
    close = difflib.get_close_matches(name, list(names), n=3)
    return min(close, key=lambda other: sorted(other) != sorted(name), default=None)


@dataclass(frozen=True)
class Ours:
    """Our setting that does the same."""

    key: str
    note: str = ""
    """What differs from the foreign setting."""
    same_value: bool = True
    """True if the value can be used unchanged."""
    values: Mapping[Any, Any] = field(default_factory=dict)
    """Their value -> our value, where the names differ. null: as if the setting were not given."""
    beside: str = ""
    """Another setting of ours that an algorithm has if `key` means this there; empty if it means the same everywhere.
    """

    def fits(self, own: Collection[str]) -> bool:
        """Return false if `own`, the settings of the chosen algorithm, has the key with another meaning."""
        return not self.beside or self.beside in own or self.key not in own


@dataclass(frozen=True)
class Nothing:
    """The reason why we have no such setting."""

    reason: str


@dataclass(frozen=True)
class ByAlgorithm:
    """One name for settings of several algorithms."""

    choices: Mapping[str, str]
    """Our key -> the algorithms that have it."""

    def under(self, own: Collection[str]) -> Ours | None:
        """Return the chosen algorithm's setting; None if it has none, or if no algorithm is chosen (`own` has all)."""
        here = [key for key in self.choices if key in own]
        return Ours(here[0]) if here and len(here) < len(self.choices) else None

    def __str__(self) -> str:
        *others, last = [f"{key} ({algorithms})" for key, algorithms in self.choices.items()]
        return f"{', '.join(others)} or {last}"


Entry = Ours | Nothing | ByAlgorithm


@dataclass(frozen=True)
class Hint:
    """The message about an unknown key: a sentence, and the key of ours that it names, if any."""

    text: str
    key: str = ""


@functools.cache
def _told() -> Mapping[str, Any]:
    return yaml.load(_FILE.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def foreign_values() -> Mapping[str, Mapping[str, str]]:
    """Return our setting -> the other libraries' names of its values -> what to write here."""
    return _told()["values"]


def value_of_ours(key: str, given: str) -> str:
    """Return a sentence about a value that another library has; empty if none has it.

    >>> value_of_ours("algorithm.name", "geo_mean")
    'Here that is gmpo.'
    """
    found = foreign_values().get(key, {}).get(given)
    return f"Here that is {found}." if found else ""


@functools.cache
def peers() -> Mapping[str, Mapping[str, Entry]]:
    """Return project -> its names, from names.yaml. The first call reads the file."""
    projects = {name: names for name, names in _told().items() if name not in ("shared", "values", SAME)}
    return {project: _entries(names) for project, names in projects.items()}


def _entries(names: Mapping[str, Any]) -> dict[str, Entry]:
    return {str(name): read_entry(told) for name, told in names.items()}


@functools.cache
def all_names(project: str) -> Mapping[str, Entry]:
    """Return all known setting names of a project, including names that our settings share."""
    return {**_entries(_told()[SAME].get(project, {})), **peers()[project]}


def entry_of(project: str, path: str) -> Entry | None:
    """Return our counterpart of the setting `path` of a project: by the longest known suffix of its path, or by family.

    >>> entry_of("verl", "actor_rollout_ref.actor.optim.lr").key
    'train.learning_rate'
    """
    parts = path.split(".")
    for names in (all_names(project), peers()[COMMON]):
        found = next((names[end] for n in range(len(parts)) if (end := ".".join(parts[n:])) in names), None)
        if found is not None:
            return found
    return next((e for part in parts for beginning, e in peers()[FAMILIES].items() if part.startswith(beginning)), None)


ENTRY_KEYS = frozenset(
    {"nothing", "by_algorithm", "is", "near", "note", "values", "beside", "as", "if", "unless", "open"}
)
"""Keys of an entry of names.yaml and forms.yaml. forms.yaml alone uses `as`, `if`, `unless` and `open`."""


def read_entry(told: str | Mapping[str, Any]) -> Entry:
    """Read an entry. Raises ValueError for an unknown key: the rest of a text with a comma and without quotes."""
    if isinstance(told, str):
        return Ours(told)
    if strange := told.keys() - ENTRY_KEYS:
        raise ValueError(f"{dict(told)} has no keys {sorted(strange)}; put the text before them in quotes")
    if "nothing" in told:
        return Nothing(told["nothing"])
    if "by_algorithm" in told:
        return ByAlgorithm(told["by_algorithm"])
    key, note = told.get("is") or told["near"], told.get("note", "")
    return Ours(key, note, "is" in told, told.get("values", {}), told.get("beside", ""))


def foreign_names() -> dict[str, Mapping[str, Entry]]:
    """Return `peers()` without the prefixes of names."""
    return {project: names for project, names in peers().items() if project != FAMILIES}


def suggest(path: str, value: str, known: Iterable[str], own: Collection[str] = ()) -> Hint:
    """Return the message about the unknown key `path` with the value `value`. `known` has all existing dotted paths;
    `own` has the paths that exist for the chosen algorithm, and is empty if none is chosen.

    >>> suggest("train.num_generations", "8", ["sampling.group_size"]).text
    "TRL's num_generations is sampling.group_size here. Set sampling.group_size = 8."
    >>> suggest("group_size", "8", ["sampling.group_size"]).text
    'It belongs to sampling. Set sampling.group_size = 8.'
    >>> suggest("train.device", "2", ["train.devices", "model.device"]).text
    'Did you mean train.devices or model.device?'
    >>> suggest("beta", "0.2", [], own=["algorithm.kl_coef"]).key
    'algorithm.kl_coef'
    """
    others = [key for key in known if own and key.startswith("algorithm.") and key not in own]
    known = [key for key in known if key not in others]
    *sections, name = path.split(".")
    home = _home(".".join(sections), known)
    return (
        _bracketed(path, value)
        or _family(sections)
        or _of_a_reward(path, value, known)
        or foreign(path, value, own)
        or _misplaced(path, value, known, home)
        or (None if sections else _without_section(name, value, own))
        or _of_other_algorithms(name, others)
        or _misspelt(name, value, known, own, home)
        or _family([name])
        or Hint(_whole_section(home, known))
    )


def _home(section: str, known: list[str]) -> str:
    """Return the section that was meant: itself, or if there is none, the one with the nearest name, if any.

    >>> _home("evaluate", ["evaluation.every", "train.every"])
    'evaluation'
    """
    homes = {key.rpartition(".")[0] for key in known}
    if not section or section in homes:
        return section
    return next(iter(difflib.get_close_matches(section, homes, n=1, cutoff=0.7)), section)


def _bracketed(path: str, value: str) -> Hint | None:
    """Return the message about a list element in brackets, as in code.

    >>> _bracketed("rewards[0].weight", "2").text
    'The elements of a list are numbered after a dot. Set rewards.0.weight = 2.'
    """
    dotted = re.sub(r"\[(\d+)\]", r".\1", path)
    if dotted == path:
        return None
    return Hint(f"The elements of a list are numbered after a dot. Set {dotted} = {value}.")


def foreign(path: str, value: str, own: Collection[str]) -> Hint | None:
    """Return the message about the longest suffix of the path that is a foreign name, and name all its projects."""
    parts = path.split(".")
    for start in range(len(parts)):
        name = ".".join(parts[start:])
        found = [(project, names[name]) for project, names in foreign_names().items() if name in names]
        if found:
            return _say(name, found, value, own)
    return None


def _without_section(name: str, value: str, own: Collection[str]) -> Hint | None:
    """Return the message about a nested foreign name that was written without its sections."""
    found = [(p, names[key]) for p, names in foreign_names().items() for key in names if key.endswith(f".{name}")]
    return _say(name, found[:1], value, own) if found else None


def _say(name: str, found: list[tuple[str, Entry]], value: str, own: Collection[str]) -> Hint:
    entry = found[0][1]
    projects = " and ".join(f"{project}'s" for project, same in found if project != COMMON and same == entry)
    subject = f"{projects} {name}" if projects else name
    if isinstance(entry, Nothing):
        return Hint(f"{entry.reason}.")
    if isinstance(entry, ByAlgorithm):
        chosen = entry.under(own)
        if chosen is None:
            return Hint(f"{subject} depends on the algorithm: {entry}. Write it next to algorithm.name.")
        entry = chosen
    note = f" ({entry.note})" if entry.note else ""
    if not entry.fits(own):
        return Hint(f"{subject} is {entry.key} of other algorithms{note}; here it means something else. Leave it out.")
    action = f" Set {entry.key} = {value}." if entry.same_value else ""
    return Hint(f"{subject} is {entry.key} here{note}.{action}", entry.key)


_BESIDE = ("critic.", "reference.", "teacher.", "rewards.judge.", "check.judge.")
"""Sections of other models. If a name also exists elsewhere, the policy's setting is meant."""


def _misplaced(path: str, value: str, known: list[str], home: str) -> Hint | None:
    """Return the message about a key of ours in a wrong or misspelt section, or with a dot instead of two levels."""
    section, _, name = path.rpartition(".")
    found = [key for key in known if key.rpartition(".")[2] == name and key != path]
    found = [key for key in found if not key.startswith(_BESIDE)] or found
    if path in known:
        return Hint(f"Write it as two levels: {section}: {{{name}: {value}}}.", path)
    if (meant := f"{home}.{name}") in found:
        return Hint(f"Did you mean {meant}?", meant)
    siblings = {key.rpartition(".")[2]: key for key in known if home and key.rpartition(".")[0] == home}
    near = [siblings[one] for one in difflib.get_close_matches(name, siblings, n=1, cutoff=0.9)] if found else []
    if near:  # either a letter is missing, or the section is wrong
        return Hint(f"Did you mean {' or '.join([*near, *found])}?")
    if len(found) == 1:
        home = found[0].rpartition(".")[0] or "the top level"
        return Hint(f"It belongs to {home}. Set {found[0]} = {value}.", found[0])
    return Hint(f"Did you mean {' or '.join(found)}?") if found else None


def _of_other_algorithms(name: str, others: list[str]) -> Hint | None:
    found = next((key for key in others if key.rpartition(".")[2] == name), None)
    return Hint(f"{found} is a setting of other algorithms. Leave it out.") if found else None


def _other_order(name: str, keys: Iterable[str]) -> str | None:
    """Return the one key that has all the words of a name, in any order and with underscores anywhere; else None.

    >>> _other_order("micro_batch_tokens", ["train.tokens_per_microbatch", "train.logprob_chunk_tokens"])
    'train.tokens_per_microbatch'
    """
    words = name.split("_")
    if len(words) < 2 or min(map(len, words)) < 3:
        return None
    found = [key for key in keys if all(word in key.rpartition(".")[2].replace("_", "") for word in words)]
    return found[0] if len(found) == 1 else None


def _misspelt(name: str, value: str, known: list[str], own: Collection[str], home: str) -> Hint | None:
    """Return the message with the nearest name: in the section that was meant, among all our names, or among foreign
    ones."""
    siblings = {key.rpartition(".")[2]: key for key in known if key.rpartition(".")[0] == home}
    sections = {key.partition(".")[0]: key.partition(".")[0] for key in known} if not home else {}
    anywhere = {key.rpartition(".")[2]: key for key in known}
    if same := _other_order(name, siblings.values()) or _other_order(name, known):
        return Hint(f"Did you mean {same}?", same)
    for names, cutoff in ((siblings | sections, 0.6), (anywhere, 0.75)):
        close = difflib.get_close_matches(name, names, n=1, cutoff=cutoff)
        if close:
            return Hint(f"Did you mean {names[close[0]]}?", names[close[0]])
    names = {key.rpartition(".")[2]: key for names in foreign_names().values() for key in names}
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
    return foreign(names[close[0]], value, own) if close else None


def _of_a_reward(path: str, value: str, known: list[str]) -> Hint | None:
    """Return the message about a setting of the reward itself that was written next to its name, if it is no typo."""
    section, _, name = path.rpartition(".")
    siblings = {key.rpartition(".")[2] for key in known if key.rpartition(".")[0] == section}
    if section not in ("rewards", "check") or difflib.get_close_matches(name, siblings, n=1, cutoff=0.6):
        return None
    return Hint(f"Write settings of the reward itself under its key settings: settings: {{{name}: {value}}}.")


def _family(parts: Iterable[str]) -> Hint | None:
    families = peers()[FAMILIES].items()
    found = [entry for part in parts for beginning, entry in families if part.startswith(beginning)]
    return Hint(f"{found[0].reason}.") if found and isinstance(found[0], Nothing) else None


def _whole_section(section: str, known: list[str]) -> str:
    prefix = f"{section}." if section else ""
    names = dict.fromkeys(key[len(prefix) :].partition(".")[0] for key in known if key.startswith(prefix))
    if not names:
        return "Remove it."
    return f"Remove it; {section or 'the top level'} has {', '.join(names)}."
