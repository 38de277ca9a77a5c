"""`turnwise doctor`: a whole setup is looked at and tried before it runs, and all that is wrong is told at once."""
