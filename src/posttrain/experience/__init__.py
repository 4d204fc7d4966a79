"""From prompts or given rows to what a step learns from."""
