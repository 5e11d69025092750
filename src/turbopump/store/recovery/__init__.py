"""Recovery: opening a store after a clean stop, a kill or a power cut."""
