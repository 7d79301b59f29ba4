"""How fast the library is, as ratios: `python -m benchmarks` in the root of the repository. Nothing imports this."""
