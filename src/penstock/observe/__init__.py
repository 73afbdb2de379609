"""What the broker says about itself: logs."""
