"""The built-in tools that a run can name: a program in the sandbox, and search in a folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.episodes.ready import PASSAGE, python, search_tool
from posttrain.episodes.tools import find_tool, schema_of
from posttrain.errors import ConfigError


@pytest.fixture
def guide(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "guide"
    (folder / "deep").mkdir(parents=True)
    (folder / "towns.md").write_text("# Towns\n\nUlm has a tall minster.\n\n" + "Filler words stand here. " * 60)
    (folder / "deep" / "rivers.txt").write_text("The Danube flows through Ulm.\n\nThe Iller flows into it.\n")
    (folder / "picture.png").write_bytes(b"\x89PNG\0\xff")
    (folder / ".hidden").write_text("Ulm Ulm Ulm")
    return folder


def test_a_folder_is_searched_by_words(guide: Path):
    search = search_tool(str(guide))
    assert search("minster") == "towns.md:1\n# Towns\n\nUlm has a tall minster."
    assert search("flowing rivers in Ulm", results=1).startswith("deep/rivers.txt:1\nThe Danube flows through Ulm.")
    assert len(search("Ulm").split("\n\n# ")) == 1
    assert search("nowhere") == "Nothing was found."
    assert schema_of(search, "search")["function"]["parameters"]["required"] == ["query"]


@pytest.mark.parametrize("query", ['"', "a AND", "text:x", "NEAR(", "'; DROP TABLE passages; --", "Ulm*"])
def test_what_a_model_asks_is_words_and_never_syntax(guide: Path, query: str):
    search = search_tool(str(guide))
    if query == '"':
        with pytest.raises(ValueError, match="the query contains no word"):
            search(query)
    else:
        assert isinstance(search(query), str)


def test_passages_end_with_paragraphs(guide: Path):
    text = "\n\n".join(f"Paragraph {number} " + "word " * 60 for number in range(20))
    (guide / "long.md").write_text(text)
    found = search_tool(str(guide))("paragraph", results=10).split("\n\nlong.md:")
    assert len(found) >= 5
    assert all(len(one) < PASSAGE + 400 for one in found)
    place = next(one for one in found if "Paragraph 12 " in one)
    line = int(place.removeprefix("long.md:").partition("\n")[0])
    assert text.splitlines()[line - 1].startswith(place.partition("\n")[2].splitlines()[0][:12])


def test_the_index_is_made_anew_when_a_file_changes(guide: Path):
    before = search_tool(str(guide))
    assert before("zebra") == "Nothing was found."
    (guide / "animals.md").write_text("A zebra.")
    assert search_tool(str(guide))("zebra") == "animals.md:1\nA zebra."
    assert len(list((guide.parent / "cache" / "search").iterdir())) == 2


def test_a_folder_without_texts_is_refused(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"tools: search:.*empty, but that folder holds no text"):
        search_tool(str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match="tools: search:missing, but there is no such folder"):
        find_tool("search:missing", tmp_path)
    with pytest.raises(ConfigError, match=r'tools: pythons; did you mean "python"'):
        find_tool("pythons")


def test_a_program_runs_in_the_sandbox():
    tool = find_tool("python").load()
    assert tool is python
    assert python("print(6 * 7)") == "42\n"
    assert python("x = 1") == "It printed nothing. Print what you want to see."
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        python("1 / 0")
    with pytest.raises(RuntimeError, match=r"(PermissionError|FileNotFoundError|OSError)"):
        python("open('/etc/passwd').read()")


@pytest.mark.slow
def test_a_tool_is_described_without_importing_torch():
    """The process that describes the tools of an environment would start a second later."""
    code = (
        "import sys, posttrain.episodes.host; from posttrain.episodes.tools import calculator, schema_of; "
        "print(schema_of(calculator, 'calculator')['function']['name'], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "calculator False\n"
