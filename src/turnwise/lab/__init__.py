"""Experiments on parts of the library where the truth is known. Knows neither models nor engines nor the loop."""
