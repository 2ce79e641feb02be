"""The verbs: one module per stage of dvc.yaml, under the stage's name."""
