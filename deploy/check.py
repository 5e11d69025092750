"""Table of what was proved about containers and services on this machine:
`python -m deploy.check [image] [cluster] [pods] [units]`. It needs root, and Debian's packages that
a missing command names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

from deploy import cluster, image, pods, units
from deploy.engine import ProofError, Row, build_image, engine

PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "image": image.rows,
    "cluster": cluster.rows,
    "pods": pods.rows,
    "units": units.rows,
}


def rows(parts: Sequence[str] = ()) -> Iterator[Row]:
    """Yield each proof as soon as it is done. Raises ProofError at the first that fails."""
    with engine():
        build_image()
        for part in parts or PARTS:
            yield from PARTS[part]()


def main(parts: Sequence[str]) -> int:
    if unknown := set(parts) - PARTS.keys():
        print(f"no part {', '.join(unknown)}; parts are {', '.join(PARTS)}")
        return 2
    try:
        for what, seen in rows(parts):
            print(f"| {what} | {seen} |", flush=True)
    except ProofError as error:
        print(f"failed: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
