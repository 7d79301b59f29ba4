"""Operations in JAX that the twins use: attention, products with their own backward passes, and checks of shapes."""
