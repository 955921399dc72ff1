"""The backward operator: a pre-pass over the rows, the main kernel, and the sum of the query gradients."""
