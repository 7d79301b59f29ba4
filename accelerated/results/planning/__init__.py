"""Choose a model for a budget, and the next run for a table. `Runs.plan`, `Runs.next_run` and commands use these
functions.

costs       the cost of a model between the sizes of a table
options     the models to rank, from runs or printed coefficients: loss and cost as functions of the size
rankings    the models of one data set at their best sizes, the lowest loss first
plan        `Plan`: the rankings of one budget, printed and as JSON
next_run    `NextRuns`: the runs that narrow the interval of a requested number most
recipes     the learning rate and the batch of a model, by the rules of several authors
"""
