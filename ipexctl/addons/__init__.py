"""Parts that call the core, each a folder with its commands, decisions and output. The core imports one only for a call
that needs it (`ipexctl/addons_list.py`).
"""
