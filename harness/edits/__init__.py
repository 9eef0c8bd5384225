"""Weight edits: task vectors, NegMerge, projection, UNMERGE. Pure functions of tensors, but for four files.

`layers` says which maps of a model are edited and what goes into them, `moments` streams second moments of those
inputs, `finetune` trains, `onjob` asks a job; everything else takes tensors and returns tensors. A layer's weight is a
matrix [m, d] that maps inputs [n, d] to [n, m]; a convolution's inputs are unfolded patches, d = channels x height x
width of its kernel.
"""
