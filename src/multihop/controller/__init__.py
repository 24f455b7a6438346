"""What DynaKRAG learns from: evidence state, features, targets, forests. Pure: no model is asked, no gold is read."""
