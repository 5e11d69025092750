"""File access: the ``Disk`` interface, which simulations replace, and the modules directly on
it."""
