"""Checkpoints that are complete or absent: written to a temporary folder, checksummed, put in place by one rename.

    step-000010.tmp-4711/     the caller writes model/ and state/ into it
    manifest.json             file -> bytes and sha256, versions, step, facts
    manifest.sha256           protects the manifest; `sha256sum -c manifest.sha256` reads it
    -> fsync of every file and folder -> rename to step-000010/ -> fsync of the parent -> pruning

The checksums are needed because no weight format has one: torch 2.13 (`torch.save`, DCP) and safetensors 0.8 all load a
flipped bit silently. Tensors are stored as safetensors, everything else as JSON; nothing is unpickled.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from posttrain.errors import CheckpointError, DoesNotFit
from posttrain.files import MAY_PASS, NO_ROOM, PATIENCE, errno_of, sync
from posttrain.heartbeat import beat

MANIFEST, SEAL = "manifest.json", "manifest.sha256"
TENSORS, PLAIN = "tensors.safetensors", "plain.json"

_STEP = re.compile(r"step-(\d{6,})")
_ASIDE = re.compile(r"step-\d{6,}\.tmp-\d+(-old)?")

_MORE_SPACE = (
    "Free some space, set checkpoint.keep lower, or move the run folder to another disk (for a new run, set output)."
)


class DiskFull(DoesNotFit, CheckpointError):
    """There is no space for a checkpoint. The existing checkpoints are intact."""


class Damage(NamedTuple):
    """One defect of a checkpoint."""

    path: Path
    """Folder of the checkpoint."""
    file: str
    """Name of the damaged file in the folder; "." is the folder itself."""
    what: str

    def __str__(self) -> str:
        return f"{self.path.name}/{self.file} {self.what}"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A verified checkpoint."""

    path: Path
    step: int
    facts: Mapping[str, Any]
    """Facts about this step that the caller can read without opening a tensor."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of posttrain, torch and transformers that wrote it."""
    skipped: tuple[Damage, ...] = ()
    """Defects of newer checkpoints that were skipped."""

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def state(self) -> Path:
        return self.path / "state"


class Checkpoints:
    """The folder `checkpoints/` of a run. One process writes it; any number may read.

    >>> Checkpoints(Path("runs/none/checkpoints"), keep=3).newest() is None
    True
    """

    def __init__(self, folder: Path, keep: int) -> None:
        assert keep >= 1, "at least the newest checkpoint is kept"
        self.folder, self.keep = folder, keep
        self.pinned: set[int] = set()
        """Steps whose checkpoints are never pruned; `keep` does not count them."""

    def save(
        self,
        step: int,
        write: Callable[[Path], None],
        facts: Mapping[str, Any] | None = None,
        *,
        size: int = 0,
        wait: bool = False,
    ) -> Checkpoint:
        """Let `write` fill a folder, put it in place as the checkpoint of `step`, and remove the oldest beyond `keep`.

        `size` is the expected number of bytes (see `size_of`): if the disk has less space, nothing is written. An
        intact checkpoint of the same step is kept, because the same step of the same run has the same bytes; a damaged
        one is replaced. On a full disk, older checkpoints than the newest `keep` intact ones are removed first; with
        `wait`, it then waits a while for space.

        Raises `CheckpointError` if it cannot be written; older checkpoints are then intact and nothing is left behind.
        """
        facts = dict(facts or {})
        _require_json(facts, "facts")
        final = self.folder / f"step-{step:06d}"
        aside = self.folder / f"{final.name}.tmp-{os.getpid()}"
        if os.path.lexists(final) and isinstance(there := verify(final), Checkpoint):
            return there
        may_remove = True
        while True:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                self.clean()
                self._require_space(final, size)
                aside.mkdir()
                write(aside)
                manifest = _seal(aside, step, facts)
                self._remove(final)
                os.rename(aside, final)
                sync(self.folder)
                break
            except Exception as error:
                full = isinstance(error, DiskFull) or errno_of(error) in MAY_PASS
                if full and may_remove:
                    may_remove = False  # once: it reads the checkpoints that stay
                    if self._make_room(step):
                        continue
                if not (wait and full and PATIENCE.lasts(final)):
                    self._explain(final, max(size, _bytes_in(aside)), error)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
        PATIENCE.renew()
        self._prune(step)
        return _checkpoint(final, manifest)

    def newest(self) -> Checkpoint | None:
        """Return the newest checkpoint whose every byte verifies, with the defects of skipped ones; None if none exist.

        It changes nothing, so a reader can call it while the run trains. Raises `CheckpointError` if there are
        checkpoints, but all of them are damaged.
        """
        skipped: list[Damage] = []
        for _, path in reversed(self._steps()):
            found = verify(path)
            if isinstance(found, Checkpoint):
                return replace(found, skipped=tuple(skipped))
            skipped += found
        if not skipped:
            return None
        raise CheckpointError(
            given=f"no checkpoint in {self.folder} can be used: " + "; ".join(map(str, skipped)),
            allowed="a checkpoint whose files are exactly as they were written",
            fix="Restore the named files from a copy, or start the run again in another folder.",
        )

    def last(self) -> Checkpoint | None:
        """Return the newest checkpoint, never an older one: for using its model as the result of the run.

        Raises `CheckpointError` with the names of its damaged files.
        """
        newest = self.newest()
        if newest is not None and newest.skipped:
            raise CheckpointError(
                given="; ".join(map(str, newest.skipped)),
                allowed="the newest checkpoint exactly as it was written",
                fix=f"Restore the named files from a copy, or use an earlier model: {newest.model} is intact.",
            )
        return newest

    def before(self, step: int) -> int | None:
        """Return the step of the newest checkpoint before `step`, by folder names only; None if there is none."""
        return max((number for number, _ in self._steps() if number < step), default=None)

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, by folder names only, oldest first."""
        return [step for step, _ in self._steps()]

    def of(self, step: int) -> Checkpoint:
        """Return the checkpoint of a step. Raises `CheckpointError` with its damaged files, or if it is missing."""
        found = verify(self.folder / f"step-{step:06d}")
        if isinstance(found, Checkpoint):
            return found
        raise CheckpointError(
            given="; ".join(map(str, found)),
            allowed="a checkpoint whose files are exactly as they were written",
            fix="Restore the named files from a copy, or use another checkpoint of the run.",
        )

    def clean(self) -> None:
        """Remove the leftovers of killed saves. Only the process that writes the run may call it."""
        for path in self.folder.glob("step-*.tmp-*"):
            if _ASIDE.fullmatch(path.name):
                _delete(path)

    def _steps(self) -> list[tuple[int, Path]]:
        """Return (step, path) of everything named like a checkpoint, oldest first."""
        paths = self.folder.glob("step-*")
        named = [(int(match[1]), path) for path in paths if (match := _STEP.fullmatch(path.name))]
        return sorted((step, path) for step, path in named if path.name == f"step-{step:06d}")

    def _prune(self, step: int) -> None:
        """Keep the newest `keep` checkpoints up to `step`, and all pinned ones. A later checkpoint can only be damaged;
        the run will replace it."""
        past = [path for number, path in self._steps() if number <= step and number not in self.pinned]
        for path in past[: -self.keep]:
            self._remove(path)

    def _make_room(self, step: int) -> bool:
        """Remove the checkpoints older than the newest `keep` intact ones before `step`, except pinned ones. Return
        whether any was removed.

        `keep` may have been lowered since they were written. A damaged one does not count: if the save fails, too, the
        run needs the intact ones.
        """
        past = [path for number, path in self._steps() if number < step and number not in self.pinned]
        intact, removed = 0, False
        for path in reversed(past if len(past) > self.keep else []):
            if intact < self.keep:
                intact += isinstance(verify(path), Checkpoint)
            else:
                with suppress(OSError):
                    self._remove(path)
                    removed = True
        return removed

    def _remove(self, path: Path) -> None:
        """Remove a checkpoint. It is renamed first, so that a kill in the middle does not leave half a checkpoint."""
        if os.path.lexists(path):
            aside = path.with_name(f"{path.name}.tmp-{os.getpid()}-old")
            os.rename(path, aside)
            _delete(aside)

    def _require_space(self, final: Path, size: int) -> None:
        free = shutil.disk_usage(self.folder).free
        if size > free:
            raise DiskFull(
                given=f"{final.name} needs {_readable(size)}, but {self.folder} has {_readable(free)} free",
                allowed=f"at least {_readable(size)} of free space",
                fix=_MORE_SPACE,
            )

    def _explain(self, final: Path, size: int, error: Exception) -> NoReturn:
        if errno_of(error) is None and not isinstance(error, (OSError, SafetensorError)):
            raise error
        room = f" and has more than {_readable(size)} of free space" if size else ""
        kind = DiskFull if errno_of(error) in NO_ROOM else CheckpointError
        raise kind(
            given=f"{final.name} could not be written to {self.folder} ({error}); older checkpoints are intact",
            allowed=f"a folder that can be written{room}",
            fix=_MORE_SPACE,
        ) from error


@dataclass
class SavePolicy:
    """Policy for failed saves: the run continues, and gives up at the `allowed`-th failure in a row."""

    allowed: int = 3
    misses: int = 0

    def saved(self) -> None:
        self.misses = 0

    def missed(self, error: CheckpointError, *, required: bool = False) -> str:
        """Count a failed save, and return the warning to show. Raises `CheckpointError` at the last allowed failure,
        and for a `required` save: without the checkpoint of its last step, a run has no result."""
        self.misses += 1
        if required:
            raise error
        if self.misses < self.allowed:
            return f"no checkpoint was saved ({self.misses} of {self.allowed} failures in a row): {error}"
        raise type(error)(
            given=f"{self.misses} checkpoints in a row could not be saved; the last one: {error.given}",
            allowed=error.allowed,
            fix=error.fix,
        ) from error


def verify(path: Path) -> Checkpoint | list[Damage]:
    """Return the checkpoint if every byte is as written, otherwise its defects.

    Only regular files inside `path` are opened, even if the manifest names others, and no link is followed.
    """
    try:
        files, damages = _files_in(path)
        if damages:
            return damages
        manifest = _read_manifest(path, files)
        if isinstance(manifest, Damage):
            return [manifest]
        return _compare(path, files, manifest["files"]) or _checkpoint(path, manifest)
    except OSError as error:
        return [Damage(path, Path(error.filename or ".").name, f"cannot be read ({error.strerror})")]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        return [Damage(path, MANIFEST, f"is not a manifest of this library ({type(error).__name__}: {error})")]


def require_intact(model: Path) -> None:
    """Raise `CheckpointError` if the `model` or `adapter` folder of a checkpoint is damaged.

    Only a checkpoint has a manifest. Any other folder passes.
    """
    model = model.absolute()
    path = model.parent
    if not os.path.lexists(path / MANIFEST) and not (_STEP.fullmatch(path.name) and (path / "state").is_dir()):
        return
    try:
        files, damages = _files_in(path)
        manifest = _read_manifest(path, files, named=False)
        if isinstance(manifest, Damage):
            damages = [manifest]
        else:
            listed = {name: facts for name, facts in manifest["files"].items() if name.startswith(f"{model.name}/")}
            part = {name: file for name, file in files.items() if name.startswith(f"{model.name}/")}
            damages = [damage for damage in damages if damage.file.startswith(model.name)]
            damages += _compare(path, part, listed)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        damages = [Damage(path, MANIFEST, f"cannot be read ({type(error).__name__}: {error})")]
    if damages:
        raise CheckpointError(
            given=f"{path}: " + "; ".join(map(str, damages)),
            allowed="a model whose files are exactly as they were written",
            fix="Restore the named files from a copy, or use another checkpoint of the run.",
        )


def save_state(folder: Path, tensors: Mapping[str, Any], plain: Any) -> None:
    """Write a tree of named tensors (nested dicts of `Tensor`) and a JSON value, with exact dtypes, shapes and bits.

    Raises `TypeError` for a value that JSON would change (a tuple, or a key that is not a string): a resumed run would
    then not be the same run.
    """
    flat: dict[str, Tensor] = {}
    names = _flatten(tensors, "", flat)
    _require_json(plain, "plain")
    folder.mkdir(parents=True, exist_ok=True)
    save_file(_apart(flat), folder / TENSORS)
    (folder / PLAIN).write_text(json.dumps({"plain": plain, "tensors": names}), encoding="utf-8")


def load_state(folder: Path) -> tuple[dict[str, Any], Any]:
    """Read the files of `save_state` to the CPU: (tree of tensors, plain value).

    The tensors are copies. Tensors that safetensors maps from the file can start at any multiple of 4 bytes, and the
    summation order of a matrix product, hence its last bit, can depend on the alignment.
    """
    try:
        saved = json.loads((folder / PLAIN).read_text(encoding="utf-8"))
        flat = {name: tensor.clone() for name, tensor in load_file(folder / TENSORS).items()}
        return _unflatten(saved["tensors"], flat), saved["plain"]
    except (OSError, SafetensorError, ValueError, LookupError, TypeError) as error:
        raise CheckpointError(
            given=f"{folder} holds no training state that can be read ({error})",
            allowed=f"a folder with {TENSORS} and {PLAIN}, as written by the run",
            fix="Resume the run folder that wrote it; a model folder alone can be trained on, but not resumed.",
        ) from error


def size_of(*trees: Mapping[str, Any]) -> int:
    """Return the bytes of all tensors in nested dicts: the size of their checkpoint, up to a few kilobytes."""
    return sum(
        value.numel() * value.element_size() if isinstance(value, Tensor) else size_of(value)
        for tree in trees
        for value in tree.values()
        if isinstance(value, Tensor | Mapping)
    )


def _seal(folder: Path, step: int, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Write the manifest of all files in the folder, and sync all of them to disk."""
    files, strange = _files_in(folder)
    if strange:
        raise OSError("; ".join(map(str, strange)))
    manifest = {
        "step": step,
        "facts": dict(facts),
        "versions": {name: version_of(name) for name in ("posttrain", "torch", "transformers")},
        "files": {
            name: {"bytes": path.stat().st_size, "sha256": _sha256(path)} for name, path in sorted(files.items())
        },
    }
    text = json.dumps(manifest, indent=1).encode()
    (folder / MANIFEST).write_bytes(text)
    (folder / SEAL).write_text(_seal_line(text), encoding="utf-8")
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            sync(Path(parent, name))
        sync(Path(parent))
    return manifest


def _files_in(folder: Path) -> tuple[dict[str, Path], list[Damage]]:
    """Return the regular files below a folder, by relative name with "/", and a defect for everything else."""
    if folder.is_symlink() or not folder.is_dir():
        return {}, [Damage(folder, ".", "is not a real folder, but a link or a file")]
    files, strange = {}, []
    for parent, folders, names in os.walk(folder, onerror=_raise):
        for entry in (Path(parent, name) for name in (*folders, *names)):
            name = entry.relative_to(folder).as_posix()
            if entry.is_symlink():
                strange.append(Damage(folder, name, "is a symbolic link"))
            elif entry.is_file():
                files[name] = entry
            elif not entry.is_dir():
                strange.append(Damage(folder, name, "is not a regular file"))
    return files, strange


def _read_manifest(path: Path, files: Mapping[str, Path], *, named: bool = True) -> dict[str, Any] | Damage:
    """Read and check the manifest. `named`: must the name of the folder match the step?"""
    for name in (MANIFEST, SEAL):
        if name not in files:
            return Damage(path, name, "is missing: the checkpoint was never finished, or a file was removed")
    text = files[MANIFEST].read_bytes()
    if files[SEAL].read_bytes() != _seal_line(text).encode():
        return Damage(path, MANIFEST, f"does not match {SEAL}: one of the two was changed")
    manifest = json.loads(text)
    if named and path.name != f"step-{manifest['step']:06d}":
        return Damage(path, MANIFEST, f"belongs to step {manifest['step']}: the folder was renamed")
    return manifest


def _compare(path: Path, files: Mapping[str, Path], listed: Mapping[str, Any]) -> list[Damage]:
    """Compare the files with the manifest. Names in the manifest are only looked up in `files`, never opened."""
    found = set(files) - {MANIFEST, SEAL}
    damages = [Damage(path, name, "was not written by the run") for name in sorted(found - set(listed))]
    for name, written in listed.items():
        if name not in found:
            damages.append(Damage(path, name, "is missing"))
        elif (size := files[name].stat().st_size) != written["bytes"]:
            damages.append(Damage(path, name, f"has {size} bytes, but {written['bytes']} were written"))
        elif _sha256(files[name]) != written["sha256"]:
            damages.append(Damage(path, name, "has different content than was written (sha256 differs)"))
    return damages


def _checkpoint(path: Path, manifest: Mapping[str, Any]) -> Checkpoint:
    return Checkpoint(path=path, step=manifest["step"], facts=manifest["facts"], versions=manifest["versions"])


def _flatten(tree: Mapping[str, Any], prefix: str, flat: dict[str, Tensor]) -> dict[str, Any]:
    """Put the tensors of a tree into `flat` under joined names, and return the tree with those names as leaves."""
    names: dict[str, Any] = {}
    for key, value in tree.items():
        if not isinstance(key, str) or "/" in key:
            raise TypeError(f"{prefix}{key!r}: names of tensors are strings without '/'")
        if isinstance(value, Mapping):
            names[key] = _flatten(value, f"{prefix}{key}/", flat)
        elif isinstance(value, Tensor):
            names[key] = f"{prefix}{key}"
            flat[names[key]] = value
        else:
            raise TypeError(f"{prefix}{key}: a {type(value).__name__} is not a tensor; put it into `plain`")
    return names


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors on the CPU, contiguous, each with its own memory, because safetensors refuses tied weights."""
    apart: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        here = tensor.detach().to("cpu").contiguous()
        apart[name] = here.clone() if here.untyped_storage().data_ptr() in taken else here
        taken.add(apart[name].untyped_storage().data_ptr())
    return apart


def _unflatten(names: Mapping[str, Any], flat: Mapping[str, Tensor]) -> dict[str, Any]:
    return {key: flat[leaf] if isinstance(leaf, str) else _unflatten(leaf, flat) for key, leaf in names.items()}


def _require_json(value: Any, where: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{where}: the key {key!r} would come back as a string")
            _require_json(item, f"{where}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _require_json(item, f"{where}[{index}]")
    elif type(value) not in (str, int, float, bool, type(None)):
        raise TypeError(f"{where}: a {type(value).__name__} would not be read back as the same value")


def _seal_line(manifest: bytes) -> str:
    return f"{hashlib.sha256(manifest).hexdigest()}  {MANIFEST}\n"


def _sha256(path: Path) -> str:
    beat("a checkpoint is written or verified")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.cache
def version_of(name: str) -> str:
    """The version of an installed package, as checkpoints record it: for torch without the build, such as +cu130."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)  # network file systems keep open files for a little longer
    else:
        path.unlink(missing_ok=True)


def _raise(error: OSError) -> NoReturn:
    raise error


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _readable(size: int) -> str:
    """
    >>> _readable(512), _readable(5_400_000), _readable(16_000_000_000)
    ('512 bytes', '5.4 MB', '16.0 GB')
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"
