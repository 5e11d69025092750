"""Parts of consumers: assignment of queues, reading, handling, offsets, sending back.

The path of a message: ``rebalance`` or ``broker_division`` assigns a queue to a member, and
``assignment`` holds it. A loop reads the queue: it pulls (``assigned_queue``) or pops
(``popped_queue``). A policy delivers the messages, at once or in order (``delivery_policy``). The
worker pool fetches them (``ready_messages``), calls the handler (``handling``) and settles them
(``delivery``). Then the policy advances the offset, acknowledges the pop, or sends the message
back.
"""
