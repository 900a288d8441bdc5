"""The same plan in other people's words: for another launcher, or for who wants to see, or to leave."""
