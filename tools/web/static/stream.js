// Connection to the server: events, and detection of a lost connection.

const SILENCE_MS = 12000;

/** Calls `handle(kind, data)` for each event, `onConnection(up)` when the connection is made or lost. */
export function subscribe(kinds, handle, onConnection) {
  let source = null, receivedMs = 0, ended = false;

  function open() {
    source?.close();
    source = new EventSource("api/stream");
    receivedMs = Date.now();
    source.onopen = () => { receivedMs = Date.now(); onConnection(true); };
    source.onerror = () => { if (!ended) onConnection(false); };
    for (const kind of kinds) {
      source.addEventListener(kind, (event) => {
        receivedMs = Date.now();
        handle(kind, JSON.parse(event.data));
        if (kind === "ended") { ended = true; source.close(); }
      });
    }
  }

  open();
  setInterval(() => {
    if (ended) return;
    if (source.readyState === EventSource.CLOSED || Date.now() - receivedMs > SILENCE_MS) open();
  }, 3000);
}
