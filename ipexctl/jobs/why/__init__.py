"""What ended a run: its record, the first failure, its words held against known texts. Pure, but for `why`."""
