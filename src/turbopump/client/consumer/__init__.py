"""What consumers are made of: division of queues, reading, handling, offsets, sending back.

A message's way: a queue is divided among members (``rebalance``, or brokers: ``assignment``) and
stands in a table (``queue_table``). Its loop (``queue_loop``) pulls it (``assigned_queue``,
``prefetching``) or pops it (``popped_queue``), and hands messages to those that wait for them
(``ready_messages``), in order if wanted (``ordered``). Handlers take them (``handling``) and settle
them (``delivery``): then an offset is committed (``offsets``), a pop acknowledged
(``pop_requests``), or the message sent back (``send_back``).
"""
