"""Numbers of things, written for people."""


def counted(number: int, what: str) -> str:
    """Return a number with its noun, such as ``1 queue`` and ``1,000 queues``."""
    if number == 1:
        return f"1 {what}"
    return f"{number:,} {what}s"
