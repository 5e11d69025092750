"""Parts of consumers: division of queues, reading, handling, offsets, sending back.

The way of a message: a queue is divided among members (``rebalance``, ``broker_division``) and
stands in a table (``assignment``). A source reads it: a loop that pulls (``assigned_queue``) or
pops (``popped_queue``). A policy hands messages out, at once or in order (``delivery_policy``). The
pool takes them (``ready_messages``), calls the handler (``handling``) and settles them
(``delivery``). The policy then moves the offset on, acknowledges the pop, or sends the message
back.
"""
