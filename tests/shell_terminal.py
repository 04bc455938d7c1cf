"""Types at the shell's terminal, and checks the output."""

import os
import pty
import re
import signal
import sys

MAIN, MORE, QUOTED = "gannet> ", "     -> ", "     '> "
process, terminal = pty.fork()
if process == 0:
    os.environ["TERM"] = "xterm"
    os.execv(sys.argv[1], [sys.argv[1], "sql", "--memory", "64MiB"])
shown = ""
# A missing prompt ends the test.
signal.alarm(600)


def await_text(text):
    """The output up to a text, without control sequences."""
    global shown
    while True:
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", shown)
        if text in plain:
            before, shown = plain.split(text, 1)
            return before
        try:
            read = os.read(terminal, 1 << 16)
        except OSError:
            sys.exit(f"the shell ended before {text!r}: {plain!r}")
        shown += read.decode(errors="replace")


def say(line, prompt):
    """The output for a typed line, up to the next prompt."""
    os.write(terminal, line.encode() + b"\r")
    await_text(line)
    return await_text("\n" + prompt) if prompt else ""


await_text(MAIN)
say("SELECT", MORE)
assert "ERROR" not in say("6 * 7;", MAIN)
# Commands within a statement leave the statement unchanged.
say("SELECT 'typed in ' ||", MORE)
assert ".tables" in say(".help", MORE)
assert ".tables" in say("help", MORE)
say(".mode raw", MORE)
assert "typed in two lines" in say("'two lines';", MAIN)
# A line of a quoted text is no command.
say("SELECT 'a", QUOTED)
say("quit", QUOTED)
assert "quit" in say("b';", MAIN)
assert ".tables" in say("help;", MAIN)
# Ctrl-C drops the typed statement.
say("CREATE TABLE never (id int", MORE)
os.write(terminal, b"\x03")
await_text(MAIN)
say("SELECT 1;", MAIN)
# An unfinished statement never runs.
say("SELECT 1", MORE)
say("exit", "")
_, status = os.waitpid(process, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
