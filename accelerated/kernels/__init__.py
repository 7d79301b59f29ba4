"""Sequential searches, compiled by numba.

`laws` and `routers.base` call them with NumPy arrays. `cpu` uses only `compile`.
"""
