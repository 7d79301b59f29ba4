"""Speed of the library, as ratios: run `python -m benchmarks` in the root of the repository."""
