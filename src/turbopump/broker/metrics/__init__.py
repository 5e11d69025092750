"""Metrics of a broker under Apache's names, one module for each subject.

The values are read at the scrape: from the tables, the store and the statistics. What none of these
remembers is counted in ``broker/counters/``.
"""
