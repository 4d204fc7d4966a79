"""From prompts or given rows to the experience of a step."""
