import rich
log = 1
