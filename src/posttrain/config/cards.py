"""Goes with the facts on file of lab/advise."""

from contextlib import nullcontext as without_torch

__all__ = ["without_torch"]
