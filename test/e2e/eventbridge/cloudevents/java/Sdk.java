import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.sun.net.httpserver.HttpServer;
import io.cloudevents.CloudEvent;
import io.cloudevents.core.builder.CloudEventBuilder;
import io.cloudevents.core.message.MessageWriter;
import io.cloudevents.http.HttpMessageFactory;
import io.cloudevents.jackson.JsonFormat;
import java.io.*;
import java.net.*;
import java.nio.charset.StandardCharsets;
import java.time.OffsetDateTime;
import java.time.format.DateTimeFormatter;
import java.util.*;
import java.util.concurrent.Executors;

/** Sends and receives events with sdk-java. See doc.go for the arguments, the input and the output. */
public class Sdk {
  static final ObjectMapper json = new ObjectMapper();

  static synchronized void say(JsonNode line) {
    System.out.println(line);
    System.out.flush();
  }

  static CloudEvent build(JsonNode event) {
    JsonNode attributes = event.get("attributes");
    CloudEventBuilder b = CloudEventBuilder.v1();
    attributes.fields().forEachRemaining(a -> {
      JsonNode value = a.getValue();
      switch (a.getKey()) {
        case "specversion", "datacontenttype" -> {}
        case "id" -> b.withId(value.asText());
        case "source" -> b.withSource(URI.create(value.asText()));
        case "type" -> b.withType(value.asText());
        case "subject" -> b.withSubject(value.asText());
        case "dataschema" -> b.withDataSchema(URI.create(value.asText()));
        case "time" -> b.withTime(OffsetDateTime.parse(value.asText()));
        case "link" -> b.withExtension("link", URI.create(value.asText()));
        default -> {
          if (value.isBoolean()) b.withExtension(a.getKey(), value.asBoolean());
          else if (value.isInt()) b.withExtension(a.getKey(), (Integer) value.asInt());
          else b.withExtension(a.getKey(), value.asText());
        }
      }
    });
    if (!event.get("data").isNull()) b.withData(attributes.get("datacontenttype").asText(), Base64.getDecoder().decode(event.get("data").asText()));
    return b.build();
  }

  static JsonNode describe(CloudEvent event) {
    ObjectNode attributes = json.createObjectNode();
    for (String name : event.getAttributeNames()) {
      Object value = event.getAttribute(name);
      if (value instanceof OffsetDateTime time) value = time.format(DateTimeFormatter.ISO_OFFSET_DATE_TIME); // with seconds
      if (value != null) attributes.put(name, value.toString());
    }
    for (String name : event.getExtensionNames()) attributes.set(name, json.valueToTree(event.getExtension(name)));
    ObjectNode out = json.createObjectNode();
    out.set("attributes", attributes);
    return out.put("data", event.getData() == null ? null : Base64.getEncoder().encodeToString(event.getData().toBytes()));
  }

  static void send(String url, String mode, CloudEvent event, ObjectNode line) throws IOException {
    HttpURLConnection connection = (HttpURLConnection) new URL(url).openConnection();
    connection.setRequestMethod("POST");
    connection.setDoOutput(true);
    MessageWriter<?, ?> writer = HttpMessageFactory.createWriter(connection::setRequestProperty, body -> {
      if (body == null) return;
      try (OutputStream out = connection.getOutputStream()) {
        out.write(body);
      } catch (IOException e) {
        throw new UncheckedIOException(e);
      }
    });
    if (mode.equals("structured")) writer.writeStructured(event, JsonFormat.CONTENT_TYPE);
    else writer.writeBinary(event);
    int status = connection.getResponseCode();
    InputStream answer = status < 400 ? connection.getInputStream() : connection.getErrorStream();
    line.put("status", status).put("answer", new String(answer.readAllBytes(), StandardCharsets.UTF_8));
  }

  public static void main(String[] args) throws Exception {
    HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
    server.setExecutor(Executors.newCachedThreadPool());
    server.createContext("/", exchange -> {
      byte[] body = exchange.getRequestBody().readAllBytes();
      ObjectNode line = json.createObjectNode().put("path", exchange.getRequestURI().getPath());
      ArrayNode events = line.putArray("events");
      try {
        events.add(describe(HttpMessageFactory.createReaderFromMultimap(exchange.getRequestHeaders(), body).toEvent()));
      } catch (RuntimeException e) {
        line.put("error", e.toString());
      }
      say(line);
      exchange.sendResponseHeaders(204, -1);
      exchange.close();
    });
    server.start();
    say(json.createObjectNode().put("listening", "127.0.0.1:" + server.getAddress().getPort()));
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String text; (text = in.readLine()) != null; ) {
      JsonNode request = json.readTree(text), event = request.get("events").get(0);
      ObjectNode line = json.createObjectNode();
      line.putArray("sent").add(event.get("attributes").get("id"));
      try {
        send(args[0], request.get("mode").asText(), build(event), line);
      } catch (IOException | RuntimeException e) {
        line.put("status", 0).put("answer", e.toString());
      }
      say(line);
    }
    System.exit(0);
  }
}
