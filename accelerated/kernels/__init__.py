"""Sequential searches compiled by numba, called with NumPy arrays by `laws` and `routers.base`; `cpu` uses only
`compile`.
"""
