// Sends and receives events with sdk-javascript. See doc.go for the arguments, the input and the output.
import http from "node:http";
import readline from "node:readline";
import { CloudEvent, HTTP } from "cloudevents";

const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");
const isJSON = (contentType) => contentType === undefined || contentType.startsWith("application/json");
const isText = (contentType) => contentType.startsWith("text/");

function build({ attributes, data }) {
  if (data === null) return new CloudEvent(attributes);
  const bytes = Buffer.from(data, "base64");
  if (isJSON(attributes.datacontenttype)) return new CloudEvent({ ...attributes, data: JSON.parse(bytes) });
  if (isText(attributes.datacontenttype)) return new CloudEvent({ ...attributes, data: bytes.toString() });
  return new CloudEvent({ ...attributes, data: new Uint8Array(bytes) });
}

function describe(event) {
  const { data, data_base64, ...attributes } = event;
  let bytes = null;
  if (data_base64) bytes = Buffer.from(data_base64, "base64");
  else if (data !== undefined && data !== "") bytes = Buffer.from(isJSON(event.datacontenttype) ? JSON.stringify(data) : data);
  return { attributes, data: bytes && bytes.toString("base64") };
}

const server = http.createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  let body = Buffer.concat(chunks);
  const contentType = request.headers["content-type"];
  if (contentType === undefined || !contentType.startsWith("application/octet-stream")) body = body.toString();
  try {
    const events = HTTP.toEvent({ headers: request.headers, body });
    say({ path: request.url, events: [events].flat().map(describe) });
  } catch (e) {
    say({ path: request.url, events: [], error: String(e) });
  }
  response.writeHead(204).end();
});
server.listen(0, "127.0.0.1", async () => {
  say({ listening: `127.0.0.1:${server.address().port}` });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { mode, events } = JSON.parse(line);
    const sent = events.map((e) => e.attributes.id);
    try {
      const event = build(events[0]);
      const { headers, body } = mode === "structured" ? HTTP.structured(event) : HTTP.binary(event);
      const answer = await fetch(process.argv[2], { method: "POST", headers, body });
      say({ sent, status: answer.status, answer: await answer.text() });
    } catch (e) {
      say({ sent, status: 0, answer: String(e) });
    }
  }
  process.exit();
});
