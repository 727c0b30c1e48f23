"""What is measured with estimates: ratios, choices, orders, bounds, consistency, information, perplexity."""
