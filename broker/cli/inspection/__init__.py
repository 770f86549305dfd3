"""`lakehead inspect`: the content of an object, a write-ahead log, the metadata log. Reads only.

It is for debugging, so it does not refuse damaged items: it marks them and shows the rest.
"""

from lakehead.broker.cli.help_page import CommandLine
from lakehead.broker.cli.inspection.keys import inspect_keys
from lakehead.broker.cli.inspection.metadata import inspect_checkpoint, inspect_log, inspect_state
from lakehead.broker.cli.inspection.objects import inspect_object, inspect_objects
from lakehead.broker.cli.inspection.wal import inspect_wal

app = CommandLine(
    help="Show metadata, an object or a write-ahead log.",
)
app.command("state")(inspect_state)
app.command("log")(inspect_log)
app.command("checkpoint")(inspect_checkpoint)
app.command("objects")(inspect_objects)
app.command("object")(inspect_object)
app.command("wal")(inspect_wal)
app.command("keys")(inspect_keys)
