"""Off-policy correction: one record for all published ones, how it acts on a batch, and what is measured."""
