"""Which model to train for a budget, and which run to add to a table: `Runs.plan`, `Runs.next_run` and commands enter.

costs       what a model between the sizes of a table costs
options     the kinds of models that runs or printed coefficients offer, each as functions of its size
rankings    the options of one data set at their best sizes, the least loss first
plan        `Plan`: the rankings of one budget, for a reader and as JSON
next_run    `NextRuns`: which run narrows the interval of one number most
"""
