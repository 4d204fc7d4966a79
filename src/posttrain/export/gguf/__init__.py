"""GGUF, the single-file format of llama.cpp. It needs the package gguf (extra `gguf`), which is imported on use."""
