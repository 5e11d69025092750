"""Operator's functions on a cluster. The command line, the doctor and a console call them."""
