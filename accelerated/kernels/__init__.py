"""numba kernels: sequential work that neither NumPy nor JAX does well."""
