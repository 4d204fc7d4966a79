"""The pictures of docs/explore.md: `python -m tests.lab.explore.screenshots docs/images`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.lab.explore.chromium import Chromium

from posttrain.lab.explore import write_page


class Picture(NamedTuple):
    """A view of the page, and the section to show."""

    address: str
    section: str = ""
    theme: str = "light"
    width: int = 1280
    height: int = 860
    scale: float = 1.0


PICTURES = {
    "explore-light": Picture("#a=ppo&b=grpo&model=14b&kl=on&reward=model"),
    "explore-dark": Picture("#a=ppo&weights=lora&device=rtx-4090&gpus=1", theme="dark"),
    "explore-differences": Picture("#a=ppo&b=grpo", section="facts"),
    "explore-advisor": Picture("#walk=verifier.exact.reasoning.experts.stability.plain", section="advisor", height=800),
    "explore-phone": Picture("#a=grpo&b=dpo&model=3b&gpus=1", section="memory", width=390, height=844, scale=1.5),
}


def take(folder: Path) -> None:
    """Write one PNG for each picture into the folder."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place, Chromium(Path(place)) as browser:
        page = write_page(Path(place) / "explore.html")
        for name, picture in PICTURES.items():
            browser.size(picture.width, picture.height, scale=picture.scale, phone=picture.width < 600)
            browser.media(prefers_color_scheme=picture.theme, prefers_reduced_motion="reduce")
            browser.open(page.as_uri() + picture.address)
            if picture.section:
                browser.evaluate(f"document.getElementById('{picture.section}').scrollIntoView()")
            browser.screenshot(folder / f"{name}.png")


if __name__ == "__main__":
    take(Path(sys.argv[1]))
