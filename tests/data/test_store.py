"""A store gives back what was put in, whatever happened to its folder: it is complete, or it is not there."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.data import store
from posttrain.data.dropped import Dropped
from posttrain.data.store import open_store, write_store
from posttrain.errors import DoesNotFit
from posttrain.types import Example, LabelledExample, Pair


def example(index: int, length: int = 3) -> Example:
    return Example(
        index=index,
        input_ids=tuple(range(index, index + length)),
        completion_mask=tuple(n % 2 == 1 for n in range(length)),
    )


def pair(index: int, margin: float | None = None) -> Pair:
    return Pair(index=index, chosen=example(index, 4), rejected=example(index, 2), margin=margin)


def labelled(index: int, *, label: bool) -> LabelledExample:
    return LabelledExample(index=index, example=example(index), label=label)


def kept(folder, record, *found):
    write_store(folder, record, iter(found))
    opened = open_store(folder, record)
    assert opened is not None
    return opened


@pytest.mark.parametrize(
    "records",
    [
        [example(0), example(5, 1), example(2**31 - 2, 1), example(7, 40)],
        [pair(0), pair(3, 0.5), pair(4, -1e-30), pair(5, 0.0)],
        [labelled(1, label=True), labelled(0, label=False)],
    ],
    ids=["examples", "pairs", "labels"],
)
def test_records_come_back_as_they_were(tmp_path, records):
    stored, dropped = kept(tmp_path / "store", type(records[0]), *records)
    assert list(stored) == records
    assert (stored[-1], stored[1:], stored[:0]) == (records[-1], tuple(records[1:]), ())
    assert list(dropped) == []
    assert all(
        type(token) is int for token in (stored[0].chosen if isinstance(stored[0], Pair) else example(0)).input_ids
    )
    with pytest.raises(IndexError, match=f"record {len(records)} of {len(records)}"):
        stored[len(records)]


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(0, 9), max_size=12), drops=st.sets(st.integers(0, 11)))
def test_any_lengths_and_any_drops(tmp_path_factory, lengths, drops):
    found = [Dropped(f"a:{n}", "empty") if n in drops else example(n, length) for n, length in enumerate(lengths)]
    stored, dropped = kept(tmp_path_factory.mktemp("any") / "store", Example, *found)
    assert list(stored) == [one for one in found if isinstance(one, Example)]
    assert list(dropped) == [one for one in found if isinstance(one, Dropped)]


def test_what_was_left_out_is_a_sequence_too(tmp_path):
    lost = [Dropped(f"über.jsonl:{n}", f"reason\n{n}") for n in range(5)]
    _, dropped = kept(tmp_path / "store", Example, *lost)
    assert (len(dropped), dropped[2], dropped[-1], list(dropped[1:3])) == (5, lost[2], lost[4], lost[1:3])


@pytest.mark.parametrize("name", [*store.FILES, store.DROPPED, store.SEAL])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_a_damaged_store_is_noticed_and_written_anew(tmp_path, name, damage):
    folder, found = tmp_path / "store", [pair(0), Dropped("a:2", "empty"), pair(2)]
    write_store(folder, Pair, iter(found))
    content = (folder / name).read_bytes()
    changed = {"cut": content[:-1], "flipped": bytes([content[0] ^ 1]) + content[1:], "gone": b""}[damage]
    (folder / name).write_bytes(changed) if damage != "gone" else (folder / name).unlink()
    assert open_store(folder, Pair) is None
    stored, dropped = kept(folder, Pair, *found)
    assert [*stored, *dropped] == [pair(0), pair(2), Dropped("a:2", "empty")]
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_store_of_other_records_is_none_of_these(tmp_path):
    write_store(tmp_path / "store", Example, iter([example(0)]))
    assert open_store(tmp_path / "store", Pair) is None


def test_of_two_writers_the_first_to_finish_is_kept(tmp_path):
    folder = tmp_path / "store"

    def slow():
        yield example(0)
        write_store(folder, Example, iter([example(0)]))  # another process, in the middle of this one
        yield example(1)

    write_store(folder, Example, slow())
    opened = open_store(folder, Example)
    assert opened is not None
    assert len(opened[0]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_an_error_on_the_way_leaves_nothing(tmp_path):
    def broken():
        yield example(0)
        raise ValueError("row 2")

    with pytest.raises(ValueError, match="row 2"):
        write_store(tmp_path / "store", Example, broken())
    assert list(tmp_path.iterdir()) == []


def test_a_killed_writer_leaves_no_store_and_the_next_one_clears_up(tmp_path):
    code = (
        "import itertools, sys, time\nfrom pathlib import Path\nfrom posttrain.data.store import write_store\n"
        "from posttrain.types import Example\n"
        "def rows():\n  for n in itertools.count():\n"
        "    yield Example(index=n, input_ids=(1,) * 500, completion_mask=(True,) * 500)\n"
        f"write_store(Path({str(tmp_path / 'store')!r}), Example, rows())\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"OMP_NUM_THREADS": "1"})
    try:
        while not any(file.stat().st_size > 1000 for file in tmp_path.glob("store.*.part/ids.i32")):
            assert writer.poll() is None
            time.sleep(0.02)
        write_store(tmp_path / "other", Example, iter([example(0)]))
        store._remove_abandoned(tmp_path / "store")
        assert len(list(tmp_path.glob("store.*.part"))) == 1  # a living writer's draft stays
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    assert open_store(tmp_path / "store", Example) is None
    kept(tmp_path / "store", Example, example(0))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "store"]


def test_a_full_disk_is_an_error_that_says_what_to_do(tmp_path, monkeypatch):
    def full(self, name, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store._Files, "write", full)
    with pytest.raises(DoesNotFit, match="No space left on device") as found:
        write_store(tmp_path / "store", Example, iter([example(0)]))
    assert "POSTTRAIN_CACHE" in str(found.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_disk_that_is_full_when_the_buffers_are_written_is_the_same_error(tmp_path, monkeypatch):
    real = store._Files.__init__

    def on_a_full_disk(self, folder):
        real(self, folder)
        self.open["ids.i32"] = open("/dev/full", "wb")  # noqa: SIM115

    monkeypatch.setattr(store._Files, "__init__", on_a_full_disk)
    with pytest.raises(DoesNotFit, match="No space left on device"):
        write_store(tmp_path / "store", Example, itertools.islice(map(example, itertools.count()), 5))
    assert list(tmp_path.iterdir()) == []


def test_the_cache_folder_may_be_no_folder(tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(DoesNotFit, match="cannot be written"):
        write_store(tmp_path / "cache" / "store", Example, iter([example(0)]))


def test_the_seal_says_what_is_inside(tmp_path):
    write_store(tmp_path / "store", Pair, iter([pair(0), Dropped("a:1", "x")]))
    seal = json.loads((tmp_path / "store" / "seal.json").read_text())
    assert (seal["record"], seal["dropped"], seal["files"]["ids.i32"][0]) == ("pair", 1, 4 * 6)
