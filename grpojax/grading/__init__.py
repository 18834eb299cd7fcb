"""Answer grading: strings in, True or False out. In reading order:

answers      find the answer in a text, and bring it to a normal form
units        units after a number
latex        read a normal form into a tree, by a closed grammar
fold         rational arithmetic on a tree
equality     rules by which two trees are the same answer
real_sets    intervals, inequalities and their unions
symbolic     what takes algebra, with sympy; in a worker process
book         the verdicts of the book's grader
math_verify  the verdicts of the math-verify library
worker       the worker process
pool         a pool of worker processes with a time limit
grader       `grade` and `Grader`: the above within limits of time, memory and size
"""
