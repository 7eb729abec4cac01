"""The planner of hotsplit: which experts of a mixture-of-experts model stay in HBM, and what a machine can hold."""
