"""Export: a trained model as a folder that others open, replayed before it is called finished."""

from posttrain.export.api import Exported, export

__all__ = ["Exported", "export"]
