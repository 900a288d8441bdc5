"""Facts about hosts: one probe in one round trip gives one frozen `Facts` value per host."""
