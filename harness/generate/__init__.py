"""Generators: token ids in, greedy text out. `hf` asks a model in memory, `canned` a dictionary."""
