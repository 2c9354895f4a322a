"""What a request does."""
