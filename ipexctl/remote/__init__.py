"""How a host is touched: sessions over ssh or on this machine, fan-out over many.

What a command means is decided elsewhere; this room carries it and says what came back.
"""
