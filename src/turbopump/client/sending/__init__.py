"""How a message gets to a broker: chosen, framed, tried again, counted."""
