"""Parts of consumers: assignment of queues, reading, handling, offsets, sending back.

The path of a message: ``rebalance`` assigns a queue to a member, and ``queue_table`` holds it. A
loop reads the queue, by pulls or pops (``queue_loop``). A policy delivers the messages, at once or
in order (``delivery_policy``). The worker pool fetches them (``ready_messages``), calls the handler
(``handling``) and settles them (``delivery``). Then the policy advances the offset, acknowledges
the pop, or sends the message back.
"""
