"""Types at a shell's terminal, and waits for what it shows."""

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
# A prompt that does not come ends the test.
signal.alarm(600)


def await_text(text):
    """What is shown up to the text, without what moves the cursor."""
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
    """What is shown for a line, up to the prompt that follows."""
    os.write(terminal, line.encode() + b"\r")
    await_text(line)
    return await_text("\n" + prompt) if prompt else ""


await_text(MAIN)
say("SELECT", MORE)
assert "ERROR" not in say("6 * 7;", MAIN)
# Commands within a statement leave it as it is.
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
# Ctrl-C gives up what is typed.
say("CREATE TABLE never (id int", MORE)
os.write(terminal, b"\x03")
await_text(MAIN)
say("SELECT 1;", MAIN)
# Nobody runs a statement that has not ended.
say("SELECT 1", MORE)
say("exit", "")
_, status = os.waitpid(process, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
