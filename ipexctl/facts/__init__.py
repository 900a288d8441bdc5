"""Facts about hosts: one probe in one round trip gives one frozen `Facts` value per host.

In: the output of a probe in sh. Out: `Facts`, None for what is unknown. Never changes a host or needs its Python.
"""
