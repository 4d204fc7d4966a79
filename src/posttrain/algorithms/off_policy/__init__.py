"""Off-policy correction: one record for all published corrections, its effect on a batch, and its metrics."""
