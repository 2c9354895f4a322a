"""Where a sixth protocol lives for the tests: nothing here but its folder."""
