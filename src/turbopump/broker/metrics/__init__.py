"""Metrics of a broker under Apache's names, one module for each subject."""
