// The connection to the server: events, and detection of a lost connection.

const SILENCE_MS = 12000;

/** Calls `handlers[kind](data)` for each event, `onLine(up)` when the connection is made or lost. */
export function follow(kinds, handle, onLine) {
  let source = null, heard = 0, over = false;

  function open() {
    source?.close();
    source = new EventSource("api/stream");
    heard = Date.now();
    source.onopen = () => { heard = Date.now(); onLine(true); };
    source.onerror = () => { if (!over) onLine(false); };
    for (const kind of kinds) {
      source.addEventListener(kind, (event) => {
        heard = Date.now();
        handle(kind, JSON.parse(event.data));
        if (kind === "ended") { over = true; source.close(); }
      });
    }
  }

  open();
  setInterval(() => {
    if (over) return;
    if (source.readyState === EventSource.CLOSED || Date.now() - heard > SILENCE_MS) open();
  }, 3000);
}
