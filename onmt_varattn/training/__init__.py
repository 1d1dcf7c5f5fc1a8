"""What every training run needs, of whatever model. It knows no task."""
