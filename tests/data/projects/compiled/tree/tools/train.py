import det
