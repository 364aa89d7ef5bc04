"""Hyperparameters learnt through whole trainings (2018 paper)."""
