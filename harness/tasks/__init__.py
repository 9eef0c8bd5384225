"""The benchmarks: each module has `build(ref, template)`, which checks its options and gives a `Task`."""
