"""The forward operator: output and logsumexp."""
