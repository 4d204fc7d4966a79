"""reward.svg stands alone: valid XML, nothing from outside, readable on light and dark."""

import xml.etree.ElementTree as xml

from posttrain.report.plot import write_plot


def test_the_picture_shows_reward_and_held_out_score(run_folder):
    path = write_plot(run_folder)
    assert path == run_folder / "reward.svg"
    picture = xml.parse(path).getroot()
    names = "{http://www.w3.org/2000/svg}"
    texts = [element.text for element in picture.iter(f"{names}text")]
    assert texts[:3] == ["Held-out accuracy 22% → 95%", "training reward", "held-out accuracy with intervals"]
    assert len(list(picture.iter(f"{names}circle"))) == 3, "before, in the middle, after"
    assert "prefers-color-scheme: dark" in path.read_text()
    assert "http" not in path.read_text().replace("http://www.w3.org/2000/svg", "")


def test_it_can_be_written_elsewhere_and_needs_no_evaluation(run_folder, tmp_path):
    (run_folder / "evaluation.json").unlink()
    (run_folder / "events.jsonl").unlink()
    path = write_plot(run_folder, tmp_path / "plot.svg")
    assert path == tmp_path / "plot.svg"
    assert ">Reward</text>" in path.read_text()


def test_a_run_without_reward_has_no_picture(tmp_path):
    assert write_plot(tmp_path) is None
