"""Facts about hosts: one probe, one round trip, one frozen `Facts` value per host."""
