"""What a finished run's weights stand up to: relearning, rounding, and the same questions in other words.

Measured off the clock, after the final score, on boards whose rows are texts. An axis is a stage of its own; what it
found is reported beside the score and never part of it.
"""
