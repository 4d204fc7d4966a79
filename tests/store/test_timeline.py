"""timeline.json can be read at any moment, is bounded, and never disturbs a run."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

from tests.timelines import events_of, instants_of, spans_of, tracks_of

from posttrain.store.timeline import FILE, PREVIOUS, Timeline


def opened(folder: Path, **how: int) -> Timeline:
    timeline = Timeline()
    timeline.open(folder, **how)
    return timeline


def test_spans_instants_and_counters_are_read_back(tmp_path):
    timeline = opened(tmp_path)
    with timeline.span("trainer", "publish", step=3):
        timeline.switch("engine 0", "decoding", version=2)
        with timeline.span("trainer", "wait"):
            timeline.instant("trainer", "published", version=3)
        timeline.switch("engine 0", "loading", version=3)
        timeline.switch("engine 0")
    for value in (4, 4, 5):
        timeline.counter("rows in flight", value)
    timeline.end("trainer")  # no span is open
    timeline.close()
    events = events_of(tmp_path / FILE)
    assert json.loads((tmp_path / FILE).read_text()) == events
    assert [(span.track, span.name, span.depth, span.args) for span in spans_of(events)] == [
        ("trainer", "wait", 1, {}),
        ("engine 0", "decoding", 0, {"version": 2}),
        ("engine 0", "loading", 0, {"version": 3}),
        ("trainer", "publish", 0, {"step": 3}),
    ]
    assert instants_of(events) == [("trainer", "published", {"version": 3})]
    assert [event["args"]["rows in flight"] for event in events if event["ph"] == "C"] == [4, 5]
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times)


def test_the_file_of_a_killed_run_opens_and_shows_what_was_going_on(tmp_path):
    code = (
        "import os, pathlib\nfrom posttrain.store.timeline import Timeline\n"
        "timeline = Timeline()\ntimeline.open(pathlib.Path(os.sys.argv[1]))\n"
        "timeline.begin('trainer', 'train', step=1)\nos.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    (span,) = spans_of(events_of(tmp_path / FILE))
    assert (span.name, span.end) == ("train", float("inf"))


def test_a_run_that_is_resumed_keeps_the_timeline_of_the_process_before(tmp_path):
    for step in (1, 2, 3):
        opened(tmp_path).begin("trainer", "train", step=step)
    steps = [[span.args["step"] for span in spans_of(events_of(tmp_path / name))] for name in (PREVIOUS, FILE)]
    assert steps == [[2], [3]]


def test_two_files_hold_the_newest_events_and_no_more(tmp_path):
    timeline = opened(tmp_path, most=50)
    timeline.begin("trainer", "train", step=7)
    for version in range(1000):
        timeline.counter("newest version", version)
        timeline.instant("engine 0", "lost", version=version)
    for name in (FILE, PREVIOUS):
        events = events_of(tmp_path / name)
        assert len(events) <= 50
        assert set(tracks_of(events).values()) == {"trainer", "engine 0"}
        assert [span.args for span in spans_of(events)] == [{"step": 7}]  # not finished yet, and in each file
    lost = [args["version"] for name in (PREVIOUS, FILE) for _, _, args in instants_of(events_of(tmp_path / name))]
    assert lost == list(range(1000 - len(lost), 1000))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([FILE, PREVIOUS])


def test_threads_write_whole_lines(tmp_path):
    timeline = opened(tmp_path)

    def work(track: str) -> None:
        for number in range(200):
            with timeline.span(track, "decoding", number=number):
                timeline.instant(track, "token")

    threads = [threading.Thread(target=work, args=(f"engine {number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spans = list(spans_of(events_of(tmp_path / FILE)))
    assert len(spans) == 800
    assert all(span.depth == 0 and span.begin <= span.end for span in spans)


def test_without_a_place_to_write_nothing_is_written_and_nothing_fails(tmp_path):
    never, nowhere = Timeline(), opened(tmp_path / "missing")
    for timeline in (never, nowhere):
        with timeline.span("trainer", "train"):
            timeline.counter("rows in flight", 1)
        timeline.close()
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_the_folder_is_not_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text("mine")
    (tmp_path / FILE).symlink_to(elsewhere)
    timeline = opened(tmp_path)
    timeline.instant("trainer", "published")
    assert elsewhere.read_text() == "mine"
