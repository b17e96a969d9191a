"""The break taxonomy: what can be structurally wrong with one answer, and what broke against the base.

    answer.py     the answer as checks read it          expect.py    what the prompt asks of an answer
    taxonomy.py   classes in order, checks, severity    inspect.py   all checks of one answer: absolute flags
    alive.py loops.py markup.py scripts.py              relative.py  an arm's answer against the base's
    json_scan.py json_answer.py schema.py calls.py content.py        one group of checks each

Knows nothing about engines, arms or statistics. Source: facts on evaluation, section 4.
"""
