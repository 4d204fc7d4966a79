"""The needs of a step: memory per phase and role, arithmetic, time, money and disk."""
