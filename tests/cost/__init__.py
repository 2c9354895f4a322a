"""What a turn costs, counted without a clock."""
