"""The command line: parses, calls, prints.

main.py       the commands, and what becomes of errors and signals
measuring.py  outward measure, outward merge
context.py    outward context
reporting.py  outward compare, outward report
exploring.py  outward explore
options.py    what options say
progress.py   windows done, rate and time left
printing.py   results to stdout, everything else to stderr
"""

from outward.cli.main import main as main
