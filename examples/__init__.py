"""What can be run as it is. A folder is one example."""
