"""Which algorithm: `advisor` weighs the rules of `guides.yaml`; `ranges` points out settings nobody has published."""
