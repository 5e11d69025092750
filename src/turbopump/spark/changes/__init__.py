"""Changes of databases in message bodies: parsers of formats, types of columns, and order.

Each format is a module with one class (``ChangeFormat``). Spark, brokers and lakes are unknown
here.
"""
