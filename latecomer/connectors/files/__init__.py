"""Files of events, and files of changes: Parquet, CSV and JSON lines, by the name's extension.

Rules:

* Rows come in the file's order, which is the order of arrival, unless another column says it (``arrival``).
* The columns' types are settled for the whole file before the first row is handed out: Parquet states them; CSV and
  JSON lines are read through once. A column gets the narrowest type that *all* its values fit, else it is text. Of the
  time column alone it is known what it must be, so there the majority decides. Types can be declared (``types``).
* A record that cannot be parsed, or that does not fit its columns' types, is handed out as a :class:`Reject` with its
  original text, and the rest goes on. Nothing is skipped in silence but blank lines.
* Files are written bit by bit under a temporary name, which becomes the real one when all is written.

>>> import tempfile, pathlib
>>> path = pathlib.Path(tempfile.mkdtemp()) / "events.csv"
>>> _ = path.write_text("type,ts,price\\nExit,1,9.5\\nExit,soon,3\\n")
>>> for chunk in open_events(path, time="ts").chunks(100):
...     print(chunk.table.to_pylist())
...     print(chunk.rejects)
[{'type': 'Exit', 'ts': 1, 'price': 9.5}]
[Reject(text='Exit,soon,3', detail="column 'ts': 'soon' is not a whole number")]
"""

from latecomer.connectors.files.reading import EventFile, open_events
from latecomer.connectors.files.records import Chunk, Reject
from latecomer.connectors.files.writing import EventWriter

__all__ = ["Chunk", "EventFile", "EventWriter", "Reject", "open_events"]
