import core, away
