"""What happened: numbers, trajectories and outcomes come in; files, figures and lines on a terminal go out.

Import from the module that holds the name. Nothing is loaded here, because matplotlib, rich and tensorboard each cost
start-up time that most commands do not need. This room refuses to know how training works: it only writes down.
"""
