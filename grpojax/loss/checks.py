"""Shape checks that name the array. They run while tracing and cost nothing on the device."""

from jax import Array


def check_shape(name: str, array: Array, shape: tuple[int | None, ...]) -> None:
    """Raises a ValueError unless `array` has `shape`; None allows any size.

    Without it a forgotten axis could broadcast to a wrong number.
    """
    fits = array.ndim == len(shape) and all(want in (None, got) for got, want in zip(array.shape, shape, strict=True))
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} has shape {array.shape}, expected ({wanted})")
