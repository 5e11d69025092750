"""Metrics of a server or a job: names, types, labels and values, and their forms for monitors."""
