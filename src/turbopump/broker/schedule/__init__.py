"""Messages for later: the levels, any time by wheel and log, and what is written down of both."""
