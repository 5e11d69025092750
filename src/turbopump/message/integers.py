"""Java's two integer widths as annotated types, for every struct that is read from outside.

One rule: a number beyond its width is refused where it is read, so nothing behind it needs to
check. Must not know who uses it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""Java `int`."""
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Java `long`."""
