"""Get facts about hosts: one probe in one round trip gives one frozen `Facts` value per host.

Input is the output of a probe in sh; output is `Facts`, where None means unknown. The probe never changes a host and
does not need Python there.
"""
