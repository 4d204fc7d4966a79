"""Translates the settings of another library: with names.yaml, with forms.yaml for names that mean something special in
one kind of config, and with the arithmetic of sizes.py."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil, floor
from typing import Any

from posttrain.config import PRESETS, describe_fields, setting_names
from posttrain.config.algorithm import complete_algorithm
from posttrain.config.names import ByAlgorithm, Entry, Nothing, Ours, all_names, entry_of, read_entry
from posttrain.config.text import show
from posttrain.lab.convert.layers import layers_of
from posttrain.lab.convert.records import FORMS, LORA, TRL, Given, Source, Unread
from posttrain.lab.convert.sizes import BOTH, PASSES, ROWS, SIZES, Sizes

_OTHER_MODELS = ("critic", "reward_model", "reward", "distillation")
"""Sections of verl for models other than the policy."""
_OF_REWARDS = ("custom_reward_function", "max_resp_len", "overlong_buffer", "reward_manager", "sandbox_fusion")
"""Settings of verl's rewards, which occur in several sections."""
CADENCES = ("checkpoint.every", "evaluation.every", "train.warmup_steps")
"""Our settings that count steps. The other library may give a share of all steps, as in save_steps = 0.1."""
PLACEHOLDER = "VALUE"
_ROUNDED = {ceil: ", each pass rounded up", floor: ", each pass rounded down", Fraction: ""}


@dataclass(frozen=True)
class Note:
    """A setting that was not taken over, and the reason."""

    line: int
    name: str
    value: Any
    text: str

    def __str__(self) -> str:
        value = self.value if isinstance(self.value, Unread) else show(self.value, self.name).strip("'")
        return f"line {self.line}, {self.name} = {value}: {self.text.rstrip('.')}."


@dataclass
class Meaning:
    """The translated settings, comments on those that differ from the original, and settings not taken over."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Dotted key -> value."""
    comments: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    """Decisions to make before the config can be used."""


def meaning_of(source: Source, *, rows: int | None = None, devices: int | Unread = 1) -> Meaning:
    """Translate the settings of `source` to ours. `rows` is the number of training rows, needed to convert passes to
    steps. `devices` is the number of processes that the other library was started with."""
    return _Translation(source, rows, devices).run()


class _Translation:
    def __init__(self, source: Source, rows: int | None, devices: int | Unread) -> None:
        self.source, self.rows, self.devices = source, rows, devices
        self.form: Mapping[str, Any] = FORMS[source.project][source.form]
        self.entries: dict[str, Any] = dict(self.form.get("settings", {}))
        self.given = {name: Given(value) for name, value in self.form.get("defaults", {}).items()}
        older = FORMS["renamed"].get(source.project, {})
        told = {older.get(name, name): given for name, given in source.settings.items()}
        self.given |= {name: given for name, given in told.items() if not name.startswith(f"{LORA}.")}
        self.meaning = Meaning()
        self.own: list[str] = []
        self.unknown: set[str] = set()
        """Our sizes that the file does not tell."""
        self.decided: set[str] = set()
        """Our settings that the file has decided, by a value of its own or by a switch that is on."""

    def run(self) -> Meaning:
        self._put(self.form.get("sets", {}), "")
        self.meaning.comments |= self.form.get("why", {})
        self._choose()
        preset = PRESETS.get(self.meaning.settings.get("preset", ""), {}).get("algorithm", {})
        self.algorithm = self.meaning.settings.get("algorithm.name", preset.get("name"))
        self.own = setting_names(self.algorithm) if self.algorithm else setting_names()
        sizes = self._sizes()
        for name, given in self.given.items():
            if sizes is None or name not in sizes.used or name in ROWS:
                self._take(name, given, self._entry(name), sizes)
        for part in self.source.parts:
            self._part(part)
        if self.source.project == TRL:
            self._layers()
        self._together()
        self._rewards()
        settings = self.meaning.settings
        if all(settings.get(f"reference.{part}") == settings.get(f"model.{part}") for part in ("path", "revision")):
            for key in [key for key in settings if key.startswith("reference.")]:
                del settings[key]  # by default the reference is the initial model
        self._leave_out_defaults()
        return self.meaning

    # --- the algorithm ---

    def _choose(self) -> None:
        """Translate the setting that selects the algorithm first, because other settings depend on it."""
        for name, values in self.form.get("choice", {}).items():
            given = self.given.pop(name, Given(None))
            value = "+".join(map(str, given.value)) if isinstance(given.value, list) else given.value
            if not _hashable(value) or value not in values:
                allowed = ", ".join(map(str, values))
                self._open(name, given, f"has no counterpart here; {allowed} have one. Set algorithm yourself")
                continue
            told = dict(values[value])
            self.entries |= told.pop("with", {})
            note = told.pop("note", "")
            beside = {n: Given(v) for n, v in told.pop("defaults", {}).items()}
            self.given = beside | self.given
            self._put(told, _origin(name, given, self.source.project, note))

    def _put(self, settings: Mapping[str, Any], comment: str) -> None:
        why = self.form.get("why", {}) if comment.endswith("default") else {}
        for key, value in settings.items():
            self.meaning.settings[key] = copy.deepcopy(value)
            self.meaning.comments[key] = why.get(key, comment)

    # --- sizes ---

    def _sizes(self) -> Sizes | None:
        unread: dict[str, Given] = {}

        def get(name: str) -> Any:
            given = self.given.get(name, Given(None))
            if isinstance(given.value, Unread):
                unread[name] = given
            return self._default(name) if name in unread else given.value

        try:
            sizes = SIZES[self.form["sizes"]](get, 1 if isinstance(self.devices, Unread) else self.devices)
        except (TypeError, ZeroDivisionError, ValueError):
            self.meaning.open.append("The sizes are not positive numbers: set train.prompts_per_step and train.steps.")
            return None
        self._find_unknown(sizes, unread)
        self._put_size("train.prompts_per_step", ceil(sizes.prompts), sizes.origin)
        self._put_size("train.minibatches", ceil(sizes.minibatches))
        self._put_size("train.epochs", sizes.epochs)
        if not {*BOTH} & self.unknown and (sizes.prompts.denominator > 1 or sizes.minibatches.denominator > 1):
            self.meaning.open.append(
                f"A step would have {float(sizes.prompts):g} prompts in {float(sizes.minibatches):g} updates: "
                "give the number of processes of the other library (--devices), or set both yourself."
            )
        self._length(sizes)
        return sizes

    def _length(self, sizes: Sizes) -> None:
        """Put the number of steps, or ask for it if it is unknown or 0."""
        steps, rounded = sizes.steps(self.rows), _ROUNDED[sizes.whole]
        whole = f" in whole batches of {sizes.batch}" if sizes.batch > 1 else ""
        rows = min(self.rows or 0, sizes.rows or self.rows or 0)
        if steps == 0 and "train.steps" not in self.unknown:
            batch = max(sizes.batch, ceil(sizes.prompts))
            self.meaning.open.append(
                f"train.steps: {rows:,} rows fill no batch of {batch:,}, so {self.source.project} takes no step. Set "
                "train.prompts_per_step and train.steps."
            )
        elif steps is not None:
            comment = f"{sizes.limit} updates, {sizes.counted} in a step" if sizes.counted > 1 else ""
            if sizes.limit is None or (sizes.first and steps < sizes.limit):
                comment = f"{sizes.passes:g} passes over {rows:,} rows{whole}{rounded}"
            self._put_size("train.steps", steps, comment)
        elif sizes.passes is not None and "train.steps" not in self.unknown:
            self.meaning.open.append(
                f"train.steps = {sizes.passes:g} * rows / {ceil(sizes.prompts)}{whole}{rounded}: the file counts "
                "passes over the rows; to compute the steps, run posttrain convert --rows N."
            )

    def _find_unknown(self, sizes: Sizes, unread: Mapping[str, Given]) -> None:
        """Ask for the sizes that follow from settings whose value the file does not tell."""
        if isinstance(self.devices, Unread):
            keys = next(iter(sizes.used.values()))
            self.meaning.open.append(f"{self.devices}: give --devices N, or set {' and '.join(keys)} yourself.")
            self.unknown |= {*keys}
        for name, given in unread.items():
            keys = sizes.used.get(name, BOTH[:1])
            if name in (*PASSES, *ROWS) and sizes.limit is not None:
                if name in PASSES:
                    self._note(name, given, "the number of steps is given")
                continue
            self.unknown |= {*keys}
            self._open(name, given, f"its value is known only when the script runs; set {' and '.join(keys)} yourself")
        if "train.steps" not in self.unknown and self.unknown and (sizes.limit is None or not sizes.counts_ours):
            lengths = {name: self.given[name] for name in sizes.lengths if name in self.given}
            told = ", ".join(f"{name} = {given.value}" for name, given in lengths.items() if given.line)
            self.meaning.open.append(f"train.steps = a number that follows from those sizes and {told or 'the rows'}.")
            self.unknown.add("train.steps")

    def _put_size(self, key: str, value: int, comment: str = "") -> None:
        if key not in self.unknown:
            self._put({key: value}, comment)

    def _default(self, name: str) -> Any:
        return self.form.get("defaults", {}).get(name)

    # --- one setting after the other ---

    def _entry(self, name: str) -> Any:
        """Return the entry for a name: the longest matching suffix in forms.yaml, otherwise the entry of names.yaml. A
        setting of another model needs an entry that names its section: `optim.lr` is the policy's."""
        parts = name.split(".")
        ends = [".".join(parts[start:]) for start in range(len(parts))]
        if parts[0] in _OTHER_MODELS:
            known = {**all_names(self.source.project), **self.entries}
            own_ends = [end for end in ends if {*_OTHER_MODELS} & {*end.split(".")} or end.startswith(_OF_REWARDS)]
            return next(
                (known[end] for end in own_ends if end in known), Nothing(f"A setting of {parts[0]}, not of the policy")
            )
        own = next((self.entries[end] for end in ends if end in self.entries), None)
        return own if own is not None else entry_of(self.source.project, name)

    def _take(self, name: str, given: Given, told: Any, sizes: Sizes | None) -> None:
        if given.value is None or name in ("reward_funcs", "reward_weights"):
            return None
        if isinstance(given.value, dict) and any(isinstance(part, Unread) for part in given.value.values()):
            given = replace(given, value=Unread(", ".join(f"{key}: {part}" for key, part in given.value.items())))
        if told is None:
            return self._note(name, given, "posttrain does not know it")
        if isinstance(told, Mapping) and {*told} == {"nothing"}:
            told = read_entry(told)
        if isinstance(told, Mapping):
            holds, keys = self._holds(told["if"]) if "if" in told else True, self._keys(name, told)
            needed = str(told.get("if")).strip("{}").replace("'", "")
            if holds is False:
                return self._note(name, given, f"{self.source.project} reads it only together with {needed}")
            if holds is None and (not given.line or self.decided.intersection(keys)):
                return self._note(name, given, f"it counts only with {needed}, whose value only the run tells")
            if (given.line or "if" in told) and not isinstance(given.value, Unread):
                self.decided.update(keys)
            if "unless" in told and self._is_positive(told["unless"]):
                if "open" not in told:
                    return self._note(name, given, f"{self.source.project} reads it only without {told['unless']}")
                if given.value:
                    return self._open(name, given, told["open"])
        if isinstance(given.value, Unread) and not isinstance(told, Nothing):
            return self._unread(name, given, told)
        if isinstance(told, Mapping) and ("as" in told or ("values" in told and not {"is", "near"} & {*told})):
            return self._special(name, given, told)
        if isinstance(told, (Mapping, str)):
            told = read_entry(told)
        return self._plain(name, given, told, sizes)

    def _unread(self, name: str, given: Given, told: Any) -> None:
        """Ask for our settings that follow from a value that the file does not tell. No such settings: add a note."""
        entry = told.under(self.own) if isinstance(told, ByAlgorithm) else told
        keys, texts = self._keys(name, entry), entry if isinstance(entry, Mapping) else {}
        if not keys and "nothing" in texts:
            return self._note(name, given, texts["nothing"])
        needed = f"set {' and '.join(keys or ['its counterpart'])} yourself"
        needed = needed if keys else texts.get("open", needed)
        return self._open(name, given, f"its value is known only when the script runs; {needed}")

    def _keys(self, name: str, entry: Any) -> list[str]:
        """Return our settings that an entry leads to. A mere switch leads to those that are read only with it."""
        if isinstance(entry, Ours):
            return [entry.key]
        if not isinstance(entry, Mapping):
            return [entry] if isinstance(entry, str) else []
        if told := entry.get("is", entry.get("near")):
            return [told]
        values = [*entry.get("as", ()), *(key for ours in entry.get("values", {}).values() for key in ours)]
        if not values:
            behind = [told for told in self.entries.values() if isinstance(told, Mapping) and "if" in told]
            values = [key for told in behind if _is_named(name, told["if"]) for key in self._keys("", told)]
        return [*dict.fromkeys(key for key in values if key != "note" and self._exists(key))]

    def _special(self, name: str, given: Given, told: Mapping[str, Any]) -> None:
        """Translate a value that stands for several of our settings."""
        if "as" in told and (parts := _parts(told["as"])) > 1 and parts != _length(given.value):
            for key in told["as"]:
                self.meaning.settings.pop(key, None)
            keys = ", ".join(told["as"])
            return self._open(
                name, given, f"{_length(given.value)} weight(s) are given for {parts} losses; set {keys} yourself"
            )
        if "as" in told:
            settings = {key: _filled(value, given.value) for key, value in told["as"].items()}
        elif _hashable(given.value) and given.value in told["values"]:
            settings = dict(told["values"][given.value])
            if note := settings.pop("note", ""):
                self._open(name, given, note)
        elif "nothing" in told:
            return self._note(name, given, told["nothing"])
        else:
            allowed = f"has no counterpart here; {', '.join(map(str, told['values']))} have one"
            return self._open(name, given, told.get("open", allowed))
        strange = [key for key in settings if not self._exists(key)]
        if strange:
            return self._note(name, given, f"{self.algorithm} has no setting {', '.join(strange)}")
        for key, value in settings.items():
            self._put({key: value}, _origin(name, given, self.source.project, key=key))
        return None

    def _plain(self, name: str, given: Given, told: Entry, sizes: Sizes | None) -> None:
        if isinstance(told, ByAlgorithm):
            chosen = told.under(self.own)
            if chosen is None:
                return self._note(name, given, f"it depends on the algorithm: {told}")
            told = chosen
        if isinstance(told, Nothing):
            return self._note(name, given, told.reason)
        value = given.value
        if told.values and isinstance(value, list):
            value = [told.values[one] for one in value if told.values.get(one) is not None]
            told = replace(told, note="")
        elif told.values and _hashable(value) and value in told.values:
            told = replace(told, note="")
            if (value := told.values[value]) is None:
                return None
        elif not told.same_value:
            return self._note(name, given, f"its counterpart is {told.key}{f' ({told.note})' if told.note else ''}")
        if not self._exists(told.key):
            return self._note(name, given, f"{self.algorithm} has no such setting")
        if not told.fits(self.own):
            return self._of_others(name, given, told) if value else None
        if told.key in CADENCES:
            return self._cadence(name, replace(given, value=value), told, sizes)
        return self._put({told.key: value}, _origin(name, given, self.source.project, told.note, told.key))

    def _of_others(self, name: str, given: Given, told: Ours) -> None:
        """Leave a term of the loss to the user that the chosen algorithm does not have."""
        default = "" if given.line else f"by default it is {show(given.value)} in {self.source.project}, but "
        other = f"{self.algorithm} has no such term, and its {told.key} is not the one meant ({told.note})"
        self._open(name, given, f"{default}{other}; choose another algorithm, or train without the term")

    def _cadence(self, name: str, given: Given, told: Ours, sizes: Sizes | None) -> None:
        """Convert a number of steps to our steps. A value below 1 is a share of all steps."""
        value = given.value
        if isinstance(value, float) and 0 < value < 1:
            steps = self.meaning.settings.get("train.steps")
            if steps is None:
                return self._open(name, given, f"{told.key} is this share of train.steps")
            exact = Fraction(str(value)) * steps
            value = max(1, ceil(exact)) if self.source.project == TRL else int(value * steps)  # as each of them rounds
        elif sizes and value and not sizes.counts_ours:
            if self.unknown - {"train.steps"}:
                return self._open(name, given, f"{told.key} is this number of updates in steps")
            value = ceil(value / sizes.counted)
        return self._put({told.key: value}, _origin(name, given, self.source.project, told.note, told.key))

    def _exists(self, key: str) -> bool:
        """Has the algorithm this setting, or settings in it?"""
        return not key.startswith("algorithm.") or any(f"{own}.".startswith(f"{key}.") for own in self.own)

    def _holds(self, told: str | Mapping[str, Any]) -> bool | None:
        """Is a setting true, or has it a value? `told` is its full name or the last part of it, or {name: value}.

        None if only the run tells: the value is asked for, and what the file gives beside it is taken over where
        nothing else decides the same setting."""
        expected = None if isinstance(told, str) else next(iter(told.values()))
        values = [given.value for name, given in self.given.items() if _is_named(name, told)]
        known = [value for value in values if not isinstance(value, Unread)]
        if any(bool(value) if expected is None else value == expected for value in known):
            return True
        return False if len(known) == len(values) else None

    def _is_positive(self, name: str) -> bool:
        value = self.given.get(name, Given(None)).value
        return isinstance(value, (int, float)) and value > 0

    def _together(self) -> None:
        """Add notes on pairs of settings that mean something else together."""
        for told in self.form.get("together", ()):
            given = self.given.get(told["of"], Given(None))
            off = isinstance(given.value, Unread) or given.value in (None, *told["unless"])
            if not off and self._holds(told["beside"]) is not False:
                self._note(told["of"], given, told["note"])

    def _part(self, part: str) -> None:
        """Translate a LoraConfig, a separate record with its own names and defaults."""
        form, prefix = FORMS[TRL][part], f"{part}."
        own = {n.removeprefix(prefix): g for n, g in self.source.settings.items() if n.startswith(prefix)}
        for name, given in ({n: Given(v) for n, v in form["defaults"].items()} | own).items():
            self._take(name, given, form["settings"].get(name), None)

    def _layers(self) -> None:
        """Name the layers of adapters that PEFT chooses if the file names none, or ask for them."""
        settings, key = self.meaning.settings, "lora.target_modules"
        asked = any(f"set {key}" in text for text in self.meaning.open)
        if asked or key in settings or not any(name.startswith("lora.") for name in settings):
            return
        layers, told = layers_of(settings.get("model.path"))
        if layers:
            self._put({key: layers}, told)
        else:
            self.meaning.open.append(f"{key}: {told}.")

    def _rewards(self) -> None:
        """Translate reward_funcs and their weights, verl's custom function, or verl's reward for such rows."""
        funcs, weights = self.given.get("reward_funcs", Given(None)), self.given.get("reward_weights", Given(None))
        entries = funcs.value if isinstance(funcs.value, list) else [funcs.value] if funcs.value else []
        rewards = [entry for entry in (self._reward(entry, funcs) for entry in entries) if entry is not None]
        if isinstance(weights.value, list) and len(weights.value) == len(rewards) == len(entries):
            rewards = [entry | {"weight": weight} for entry, weight in zip(rewards, weights.value, strict=True)]
        if rewards:
            self.meaning.settings["rewards"] = rewards
        if self.source.project != TRL:
            models = self.meaning.settings.get("rewards", [])
            self.meaning.settings["rewards"] = [*self._verl_rewards(beside=bool(models))] or models

    def _reward(self, entry: Any, given: Given) -> dict[str, Any] | None:
        if isinstance(entry, Unread):
            self._open(
                "reward_funcs", Given(entry, given.line), "name the function: rewards = [{function: file.py:name}]"
            )
            return None
        told = entry if isinstance(entry, dict) else {"function": entry} if "." in str(entry) else {"name": entry}
        known = FORMS["rewards"][TRL].get(str(next(iter(told.values()))).rpartition(".")[2])
        if known is None and "name" in told:
            return {"model": entry}
        return dict(known or told)

    def _verl_rewards(self, *, beside: bool) -> Iterator[dict[str, Any]]:
        """Yield the reward that verl takes. `beside` says whether the file also names a reward model."""
        told = {name.rpartition("custom_reward_function.")[2]: given.value for name, given in self.given.items()}
        if isinstance(told.get("path"), str):
            yield {"function": f"{told['path']}:{told.get('name') or 'compute_score'}"}
            self.meaning.open.append(
                "A reward function of verl takes (data_source, solution_str, ground_truth, extra_info); ours takes "
                "(prompt, completion, **row): write a function of ours that calls verl's."
            )
            if beside:
                both = (
                    "verl's current version scores with the function alone, and older ones with the reward model alone"
                )
                self.meaning.open.append(f"rewards: {both}; choose.")
            return
        if beside:  # a reward model scores all rows
            return
        paths = self.meaning.settings.get("data.train", "")
        paths = paths if isinstance(paths, list) else [paths]
        files = " ".join("/".join(str(path).lower().split("/")[-2:]) for path in paths)  # other folders may name a team
        found = sorted({reward for name, reward in FORMS["rewards"]["verl"].items() if name in files})
        if len(found) > 1:
            told = f"verl scores each row by its data_source, and the files may need several: {', '.join(found)}"
            self.meaning.open.append(f"rewards: {told}; name one, or write a function that chooses.")
        elif found:
            yield {"name": found[0]}
            self.meaning.comments["rewards.0.name"] = "verl scores each row by its data_source"

    # --- messages ---

    def _note(self, name: str, given: Given, text: str) -> None:
        """Add a note. Defaults of the other library get none."""
        if given.line:
            self.meaning.notes.append(Note(given.line, name, given.value, text))

    def _open(self, name: str, given: Given, text: str) -> None:
        self.meaning.open.append(str(Note(given.line, name, given.value, text)) if given.line else f"{name}: {text}.")

    def _leave_out_defaults(self) -> None:
        """Remove settings that equal our defaults or the preset's, unless the file gives them."""
        settings, comments = self.meaning.settings, self.meaning.comments
        preset = PRESETS.get(settings.get("preset", ""), {}).get("algorithm", {})
        defaults = {doc.path: doc.default for doc in describe_fields()}
        own = preset or (complete_algorithm({"name": self.algorithm}) if self.algorithm else {})
        defaults |= {f"algorithm.{name}": value for name, value in own.items() if name != "name" or preset}
        for key in [*settings]:
            silent = comments.get(key, "").endswith("default") or key in ("train.minibatches", "train.epochs")
            if silent and key in defaults and defaults[key] == settings[key]:
                del settings[key]


def _origin(name: str, given: Given, project: str, note: str = "", key: str = "") -> str:
    """Return a comment such as `epsilon, TRL's default`. A setting with the same name here needs none."""
    last, short = name.rpartition(".")[2], ".".join(name.split(".")[-2:])
    if not given.line:
        return f"{short}, {project}'s default"
    told = "" if key and key.rpartition(".")[2] == last else short
    return ": ".join(part for part in (told, note) if part)


def _is_named(name: str, told: str | Mapping[str, Any]) -> bool:
    """Is this the setting of a condition, which has its full name or the last part of it, or {name: value}?"""
    short = told if isinstance(told, str) else next(iter(told))
    return f".{name}".endswith(f".{short}")


def _parts(told: Mapping[str, Any]) -> int:
    """Return how many values the settings take that are parts of a list: VALUE.0, VALUE.1."""
    return sum(bool(re.fullmatch(rf"{PLACEHOLDER}\.\d", str(pattern))) for pattern in told.values())


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (list, tuple)) else 1


def _filled(pattern: Any, value: Any) -> Any:
    """Return the pattern with VALUE replaced by the value, at any depth."""
    if isinstance(pattern, list):
        return [_filled(inner, value) for inner in pattern]
    if isinstance(pattern, Mapping):
        return {key: _filled(inner, value) for key, inner in pattern.items()}
    if pattern == PLACEHOLDER:
        return value
    if (part := re.fullmatch(rf"{PLACEHOLDER}\.(\d)", str(pattern))) and isinstance(value, (list, tuple)):
        return value[int(part[1])] if len(value) > int(part[1]) else None
    return pattern.replace(PLACEHOLDER, str(value)) if isinstance(pattern, str) else pattern


def _hashable(value: Any) -> bool:
    return not isinstance(value, (list, dict))
