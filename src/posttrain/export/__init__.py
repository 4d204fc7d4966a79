"""Export: writes a trained model to a folder that other programs can open, and replays prompts to prove it."""

from posttrain.export.api import Exported, export

__all__ = ["Exported", "export"]
