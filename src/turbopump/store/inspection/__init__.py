"""Inspection of a store directory without changing it: files, damage and messages."""

from turbopump.store.inspection.report import KINDS, Finding, Findings, Verification
from turbopump.store.inspection.selection import Selection, read_raw, select_messages
from turbopump.store.inspection.small_files import read_run_state
from turbopump.store.inspection.store_files import StoreFiles, list_store
from turbopump.store.inspection.summary import StoreSummary, inspect_store
from turbopump.store.inspection.verification import verify_store
from turbopump.store.log.scanner import BadRange

__all__ = [
    "KINDS",
    "BadRange",
    "Finding",
    "Findings",
    "Selection",
    "StoreFiles",
    "StoreSummary",
    "Verification",
    "inspect_store",
    "list_store",
    "read_raw",
    "read_run_state",
    "select_messages",
    "verify_store",
]
