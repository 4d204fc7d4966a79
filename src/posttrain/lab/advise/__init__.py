"""Advice on algorithms and settings: `advisor` weighs the rules of `guides.yaml`, `ranges` reports unusual values."""
