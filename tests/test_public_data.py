"""The recipes that read ../shared/data name the file that is missing there."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from recipes.wins import learned_reward, siblings, statements

from posttrain.errors import DataError

NEEDED = [(statements, "STATEMENTS"), (siblings, "ULTRAFEEDBACK"), (learned_reward, "PAIRS"), (siblings, "MODEL")]


@pytest.mark.parametrize(("recipe", "name"), NEEDED)
def test_a_missing_file_is_named_before_anything_is_written(
    recipe: ModuleType, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for other in ("MODEL", "STATEMENTS", "PAIRS", "ULTRAFEEDBACK", "OTHERS"):
        monkeypatch.setattr(recipe, other, tmp_path, raising=False)
    monkeypatch.setattr(recipe, name, tmp_path / "absent")
    with pytest.raises(DataError, match=r"absent is missing\n.*shared/data\. docs/recipes\.md lists"):
        recipe.run(0, tmp_path / "runs" / "first")
    assert not (tmp_path / "runs").exists()
