"""The serving path: causal estimators, predictor back-ends, the feed-forward law."""
