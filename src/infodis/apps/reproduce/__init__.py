"""The paper's experiments, each by one command: what it claims, what comes out here, and whether that agrees."""
