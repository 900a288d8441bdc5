"""Known error texts: what each means and what to type."""
