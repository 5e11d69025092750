"""Delayed messages: delay levels, timers for any time (wheel and log), and their saved state."""
