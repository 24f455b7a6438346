"""The analysis tested on known truth: a simulated reader whose faults are set, behind the client's own protocol.

``simulate`` runs the unchanged pipeline on a generated world with that reader and gives, question by question, what
was injected and what the analysis said. ``recovery`` compares the two; ``repetitions`` checks intervals and tests on
drawn outcomes; ``bias`` measures what the paper's rules do to counts when nothing but labels differs.
"""
