import math


def dot(a: list, b: list) -> float:
    """Return Σ a_i b_i."""
    return sum(x * y for x, y in zip(a, b, strict=True))


def add(a: list, b: list) -> list:
    return [x + y for x, y in zip(a, b, strict=True)]


def times(factor: float, a: list) -> list:
    return [factor * x for x in a]


def mean(values: list) -> float:
    return sum(values) / len(values)


def column(matrix: list, j: int) -> list:
    return [row[j] for row in matrix]


def product(x: list, matrix: list) -> list:
    """Return x · matrix [m], for x [n] and matrix [n][m]."""
    return [dot(x, column(matrix, j)) for j in range(len(matrix[0]))]


def log_sum_exp(z: list) -> float:
    """Return log Σ exp(z_i). The largest entry is subtracted before exp, so that exp cannot overflow."""
    top = max(z)
    return top + math.log(sum(math.exp(value - top) for value in z))


def softmax(z: list) -> list:
    whole = log_sum_exp(z)
    return [math.exp(value - whole) for value in z]


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def gelu(x: float) -> float:
    """Return GELU in its tanh form: x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))."""
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def layer_norm(x: list, scale: list, offset: list) -> list:
    """Return scale · (x - mean) / √(variance + 10⁻⁵) + offset, with the variance Σ (x_i - mean)² / n."""
    middle = mean(x)
    variance = mean([(value - middle) ** 2 for value in x])
    return [a * (value - middle) / math.sqrt(variance + 1e-5) + b for value, a, b in zip(x, scale, offset, strict=True)]


def largest(values: list, count: int) -> list:
    """Return the indices of the `count` largest values, the largest first. Equal values have the lower index first."""
    return sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]
