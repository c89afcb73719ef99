import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * A consumer of what Pigeonhole stores in Pulsar, to copy. It makes each message what it was at its source, with all its headers, and prints it
 * as a line of JSON, where what is no text is {"base64":"..."}:
 *
 * <pre>{"key":"k1","value":"text","headers":[["a","1"],["a","2"]],"time":1700000000123,"origin":{"system":"kafka",...}}</pre>
 *
 * Run it with the topic that is the route's `to`:
 *
 * <pre>
 * mvn package
 * java -cp 'target/*:target/lib/*' Pigeonhole --url pulsar://127.0.0.1:6650 --topic persistent://public/default/orders
 * </pre>
 */
public class Pigeonhole {
    private static volatile boolean stopped;

    public static void main(String[] args) throws Exception {
        Map<String, String> options = new HashMap<>(Map.of(
                "--url", "pulsar://127.0.0.1:6650",
                "--topic", "persistent://public/default/orders",
                "--subscription", "example")); // its place on the topic outlives the program
        for (int i = 0; i < args.length; i += 2) {
            if (!options.containsKey(args[i]) || i + 1 == args.length) {
                throw new IllegalArgumentException("options with values: " + options.keySet());
            }
            options.put(args[i], args[i + 1]);
        }
        // Ctrl-C and SIGTERM: the loop ends in order.
        Thread loop = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stopped = true;
            try {
                loop.join(10_000);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }));

        Gson json = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        // With authentication: .authentication(AuthenticationFactory.token(token))
        try (PulsarClient client = PulsarClient.builder().serviceUrl(options.get("--url")).build();
                Consumer<byte[]> consumer = client.newConsumer()
                        .topic(options.get("--topic"))
                        .subscriptionName(options.get("--subscription"))
                        // What was in order at the source is in order on one partition here, and Failover gives each partition to one
                        // consumer at a time: the order is kept, and more processes share the partitions. Shared and Key_Shared do not
                        // keep it: the broker hands out whole batches.
                        .subscriptionType(SubscriptionType.Failover)
                        // A new subscription begins with the oldest message that there is.
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        .subscribe()) { // closing it sends the acknowledgements that it still holds
            while (!stopped) {
                Message<byte[]> message = consumer.receive(200, TimeUnit.MILLISECONDS);
                if (message == null) {
                    continue;
                }
                // First the work, then the acknowledgement: what is under way when the process ends comes again. Who must not do a
                // thing twice knows it by origin: its place at the source is the same each time, whatever has happened between.
                out.println(json.toJson(restore(message)));
                out.flush();
                consumer.acknowledge(message);
            }
        }
    }

    /** Returns the message as it was at its source. */
    static Map<String, Object> restore(Message<byte[]> message) {
        Map<String, String> properties = new HashMap<>(message.getProperties());
        byte[] value = message.getValue(); // null is null
        if ("true".equals(properties.remove("aviary_empty"))) {
            value = new byte[0]; // clients may show an empty value that is compressed as a few bytes
        }

        byte[] key = message.hasKey() && !message.getKey().isEmpty() ? utf8(message.getKey()) : null;
        String encoding = properties.remove("pigeonhole.key_encoding");
        if ("base64".equals(encoding)) { // Pulsar's keys are text
            key = Base64.getDecoder().decode(key);
        } else if ("empty".equals(encoding)) {
            key = new byte[0];
        }

        Object time = message.getEventTime() > 0 ? message.getEventTime() : null; // milliseconds since 1970; null: its producer said none
        String exact = properties.remove("pigeonhole.time"); // what Pulsar's field cannot hold; with an s behind it: seconds
        if (exact != null) {
            time = exact.equals("none") ? null : exact.endsWith("s") ? exact : Long.valueOf(exact);
        }

        Map<String, Object> origin = null;
        if (properties.remove("pigeonhole.hops") != null) { // the places that routes took it from. Without it the two others are the application's
            origin = readOrigin(properties.remove("pigeonhole.origin")); // absent with `provenance: hops`
            properties.remove("pigeonhole.from"); // the place before this one, after more than one hop
        }

        String amqp = properties.remove("pigeonhole.amqp"); // what RabbitMQ knows besides: exchange, routing_key, content_type and others
        String entry = properties.remove("pigeonhole.headers");

        Map<String, Object> original = new LinkedHashMap<>();
        original.put("key", shown(key));
        original.put("value", shown(value));
        original.put("headers", readHeaders(properties, entry == null ? "" : entry));
        original.put("time", time);
        original.put("origin", origin);
        if (amqp != null && !amqp.isEmpty()) {
            Map<String, Object> known = new LinkedHashMap<>();
            for (String part : amqp.split("&")) {
                int at = part.indexOf('=');
                known.put(part.substring(0, at), shown(unescape(part.substring(at + 1))));
            }
            original.put("amqp", known);
        }
        return original;
    }

    /** Reads system;cluster;topic;partition;offset;id: where the message was first taken from. */
    static Map<String, Object> readOrigin(String entry) {
        String[] parts = entry == null ? new String[0] : entry.split(";", -1);
        if (parts.length < 5) {
            return null;
        }
        Map<String, Object> origin = new LinkedHashMap<>();
        origin.put("system", shown(unescape(parts[0])));
        origin.put("cluster", shown(unescape(parts[1])));
        origin.put("topic", shown(unescape(parts[2])));
        origin.put("partition", parts[3].isEmpty() ? null : Long.valueOf(parts[3]));
        origin.put("offset", parts[4].isEmpty() ? null : Long.valueOf(parts[4]));
        // The id is that of Kafka's topic, or of Pulsar's or RabbitMQ's message.
        origin.put("id", parts.length > 5 ? shown(unescape(parts[5])) : "");
        return origin;
    }

    private static final Pattern RUN = Pattern.compile("(\\d+)(?:-(\\d+))?(?::.)?");

    /**
     * Returns the headers in their order. Those that are text are properties, sorted by name; where that is not all, the entry says what is,
     * separated by commas: 3 is the fourth property, 0-2 are the first three, 4:I the fifth, which was a number of RabbitMQ, and name=value is a
     * header that Pulsar has no property for. Without an entry the properties are all.
     */
    static List<List<Object>> readHeaders(Map<String, String> properties, String entry) {
        List<String> names = new ArrayList<>(properties.keySet());
        names.sort((a, b) -> Arrays.compareUnsigned(utf8(a), utf8(b))); // Java's own order is another beyond 16 bits
        boolean[] used = new boolean[names.size()];
        List<List<Object>> headers = new ArrayList<>();
        for (String item : split(entry)) {
            int at = item.indexOf('=');
            if (at >= 0) {
                headers.add(Arrays.asList(shown(unescape(item.substring(0, at))), readValue(item.substring(at + 1))));
                continue;
            }
            Matcher run = RUN.matcher(item);
            if (run.matches()) {
                int first = Integer.parseInt(run.group(1));
                int last = run.group(2) == null ? first : Integer.parseInt(run.group(2));
                for (int i = first; i <= last && i < used.length; i++) {
                    used[i] = true;
                    headers.add(List.of(names.get(i), properties.get(names.get(i))));
                }
            }
        }
        for (int i = 0; i < used.length; i++) {
            if (!used[i]) {
                headers.add(List.of(names.get(i), properties.get(names.get(i))));
            }
        }
        return headers;
    }

    /** Splits at commas, but not within the brackets of RabbitMQ's arrays and tables. */
    static List<String> split(String entry) {
        List<String> items = new ArrayList<>();
        int depth = 0;
        int from = 0;
        for (int i = 0; i < entry.length(); i++) {
            switch (entry.charAt(i)) {
                case '(', '{' -> depth++;
                case ')', '}' -> depth--;
                case ',' -> {
                    if (depth == 0) {
                        items.add(entry.substring(from, i));
                        from = i + 1;
                    }
                }
                default -> { }
            }
        }
        items.add(entry.substring(from));
        return items;
    }

    /**
     * Reads a letter and the value: S is text, y and x are bytes, V is null. The other letters are RabbitMQ's types: numbers, booleans and times
     * as people write them, arrays A(value,value) and tables F{name=value,name=value}.
     */
    static Object readValue(String value) {
        String text = value.substring(1);
        return switch (value.charAt(0)) {
            case 'V' -> null;
            case 'S' -> shown(unescape(text));
            case 'x', 'y' -> shown(Base64.getUrlDecoder().decode(text));
            case 'A', 'F' -> value;
            default -> text;
        };
    }

    /** Reads %XX as a byte. */
    static byte[] unescape(String text) {
        ByteArrayOutputStream plain = new ByteArrayOutputStream();
        byte[] escaped = utf8(text);
        for (int i = 0; i < escaped.length; i++) {
            if (escaped[i] == '%' && i + 2 < escaped.length) {
                plain.write(Integer.parseInt(new String(escaped, i + 1, 2, StandardCharsets.UTF_8), 16));
                i += 2;
            } else {
                plain.write(escaped[i]);
            }
        }
        return plain.toByteArray();
    }

    /** Returns bytes that are text as a String, and others as {"base64": ...}. */
    static Object shown(byte[] data) {
        if (data == null) {
            return null;
        }
        try {
            return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(data)).toString();
        } catch (CharacterCodingException e) {
            return Map.of("base64", Base64.getEncoder().encodeToString(data));
        }
    }

    private static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
