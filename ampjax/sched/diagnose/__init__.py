"""What there is to say about a scheduler: an instance's story, who waits for what, whether its tables hold together.

All of it is read from a `Snapshot`, and none of it changes anything.
"""
