"""A vLLM server as an engine: started or attached to, fed with weights while it runs, and believed in nothing."""
