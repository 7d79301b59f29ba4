"""Sequential searches compiled by numba and called with NumPy arrays: `laws` and `routers.base` enter, and `cpu` takes
`compile` alone."""
