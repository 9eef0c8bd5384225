"""Optimizers, one file each: a module `NAME.py` with `build(spec, model) -> torch.optim.Optimizer`."""
