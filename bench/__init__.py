"""Apache's broker and ours side by side under one load: `python -m bench`.
docs/explanations/benchmarks.md says how to read it."""
