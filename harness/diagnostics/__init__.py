"""What a finished run did to its model, one small file a kind of diagnostic.

`places`, `norms`, `drift`, `covariance`, `displacement` and `paths` are pure functions of tensors and arrays. `weights`
reads saved models piece by piece; `gradients` takes gradients of a run's own loss; `work` has the stages that run in a
process of their own; `figures` draws.
"""
