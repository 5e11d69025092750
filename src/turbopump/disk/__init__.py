"""File access through the ``Disk`` interface, with the modules directly on it. Simulations replace
the interface."""
