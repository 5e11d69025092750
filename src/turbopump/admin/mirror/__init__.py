"""Mirror: topics of one cluster are copied into another, for a migration or a second site."""

from turbopump.admin.mirror.mirroring import MirrorReport, mirror

__all__ = ["MirrorReport", "mirror"]
