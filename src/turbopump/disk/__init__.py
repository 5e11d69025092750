"""Files: the seam to the disk, which simulations replace, and what lies directly on it."""
