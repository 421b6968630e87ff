// node watch.mjs CLIENT URL — follows a watch with one of the clients until the server says that nothing follows, then
// prints what it saw as one line of JSON: {"sequences": […], "opens": n, "ends": […]}.
const [, , client, url] = process.argv;
const seen = { sequences: [], opens: 0, ends: [] };

function take(event, data) {
  if (event === "fact") seen.sequences.push(JSON.parse(data).sequence);
  else if (event === "hello") seen.opens += 1;
  else if (event === "end") seen.ends.push(JSON.parse(data).reason);
}

function done() {
  process.stdout.write(JSON.stringify(seen) + "\n", () => process.exit(0));
}

if (client === "eventsource") {
  const { EventSource } = await import("eventsource");
  const source = new EventSource(url);
  for (const name of ["hello", "fact", "end"]) source.addEventListener(name, (e) => take(name, e.data));
  source.addEventListener("error", () => {
    if (source.readyState === EventSource.CLOSED) done();
  });
} else {
  const { createEventSource } = await import("eventsource-client");
  const source = createEventSource({ url, onMessage: (e) => take(e.event, e.data) });
  setInterval(() => {
    if (source.readyState === "closed") done();
  }, 50);
}
