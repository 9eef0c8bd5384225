"""Optimizers, one file each: a module `NAME.py` with `Options` and `build(spec, model) -> torch.optim.Optimizer`.

`Options` (a `harness.specs.Spec`) are the settings that only this optimizer has, with their defaults and sources;
`build` reads them from `spec.options`. An optimizer that estimates curvature also has `wants_curvature` (bool, looked
at before each update) and `update_curvature(tokens)`, which reads the gradients that `fit` has just put into `.grad`:
those of the mean cross-entropy on labels drawn from the model itself. `failures` (dict of counts), where an optimizer
has it, goes into the run's record.
"""
