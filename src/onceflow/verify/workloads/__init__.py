"""What is run under faults: each workload in a file of its own, called by its name."""
