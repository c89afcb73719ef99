import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.protobuf.InvalidProtocolBufferException;
import consumer.Histogram;
import consumer.Label;
import consumer.Request;
import consumer.Sample;
import consumer.TimeSeries;
import consumer.SymbolicSeries;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * A consumer of what Nightingale writes, to copy. It prints a line per sample:
 *
 * <pre>name{label="value",...} value timestamp</pre>
 *
 * Run it with the topic, and the format, that Nightingale has in its configuration:
 *
 * <pre>
 * mvn package
 * java -cp 'target/*:target/lib/*' Nightingale --url pulsar://127.0.0.1:6650 --topic persistent://public/default/metrics --format packed
 * </pre>
 */
public class Nightingale {
    private static volatile boolean stopped;

    public static void main(String[] args) throws Exception {
        Map<String, String> options = new HashMap<>(Map.of(
                "--url", "pulsar://127.0.0.1:6650",
                "--topic", "persistent://public/default/metrics",
                "--subscription", "example", // its place on the topic outlives the program
                "--format", "json")); // or protobuf, packed
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

        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        // With authentication: .authentication(AuthenticationFactory.token(token))
        try (PulsarClient client = PulsarClient.builder().serviceUrl(options.get("--url")).build();
                Consumer<byte[]> consumer = client.newConsumer()
                        // A topic of a template, such as metrics-{label.job}, is many: topicsPattern reads them all.
                        .topic(options.get("--topic"))
                        .subscriptionName(options.get("--subscription"))
                        // One series is always on one partition, and Failover gives each partition to one consumer at a time: the
                        // order of each series is kept, and more processes share the partitions. Shared and Key_Shared do not
                        // keep it.
                        .subscriptionType(SubscriptionType.Failover)
                        // A new subscription begins with the oldest message that there is.
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        // Messages that wait in this process, for each partition. One of packed has up to 256 KiB.
                        .receiverQueueSize(100)
                        .subscribe()) { // closing it sends the acknowledgements that it still holds
            while (!stopped) {
                Message<byte[]> message = consumer.receive(200, TimeUnit.MILLISECONDS);
                if (message == null) {
                    continue;
                }
                // The sender's X-Scope-OrgID is message.getProperty("tenant").
                List<String> lines;
                try {
                    lines = read(options.get("--format"), message.getData());
                } catch (Exception e) {
                    // Not acknowledged: it comes again after the next start, and nothing behind it is taken before. To give it
                    // back and go on (negativeAcknowledge) would change the order.
                    throw new Exception("message " + message.getMessageId() + " is not of the format " + options.get("--format"), e);
                }
                // First the work, then the acknowledgement: what is under way when the process ends comes again. So each sample
                // comes at least once; who must not count one twice knows it by series and timestamp.
                lines.forEach(out::println);
                out.flush();
                consumer.acknowledge(message);
            }
        }
    }

    /** Returns the lines of a message: here is where the formats differ. */
    static List<String> read(String format, byte[] payload) throws InvalidProtocolBufferException {
        List<String> lines = new ArrayList<>();
        switch (format) {
            case "json": // one sample, histogram or exemplar
                readJson(JsonParser.parseString(new String(payload, StandardCharsets.UTF_8)).getAsJsonObject(), lines);
                break;
            case "protobuf": // one series
                readSeries(TimeSeries.parseFrom(payload), lines);
                break;
            case "packed": // many series
                readPacked(Request.parseFrom(payload), lines);
                break;
            default:
                throw new IllegalArgumentException("unknown format");
        }
        return lines;
    }

    static void readSeries(TimeSeries series, List<String> lines) {
        List<String> labels = new ArrayList<>();
        for (Label label : series.getLabelsList()) {
            labels.add(label.getName());
            labels.add(label.getValue());
        }
        readSamples(seriesText(labels), series.getSamplesList(), series.getHistogramsList(), lines);
        // series.getExemplarsList(): trace ids and the like.
    }

    /** In place of texts the series have numbers of symbols, and come with their type, help and unit. */
    static void readPacked(Request request, List<String> lines) {
        for (SymbolicSeries series : request.getTimeseriesList()) {
            List<String> labels = new ArrayList<>();
            for (int ref : series.getLabelsRefsList()) {
                labels.add(request.getSymbols(ref));
            }
            readSamples(seriesText(labels), series.getSamplesList(), series.getHistogramsList(), lines);
        }
    }

    static void readSamples(String name, List<Sample> samples, List<Histogram> histograms, List<String> lines) {
        for (Sample s : samples) {
            lines.add(name + " " + valueText(s.getValue(), false) + " " + s.getTimestamp());
        }
        for (Histogram h : histograms) { // native histograms; those with buckets as series of their own are samples
            double count = h.hasCountFloat() ? h.getCountFloat() : h.getCountInt();
            lines.add(name + " " + histogramText(count, h.getSum(), false) + " " + h.getTimestamp());
        }
    }

    static void readJson(JsonObject m, List<String> lines) {
        List<String> labels = new ArrayList<>(List.of("__name__", m.get("name").getAsString()));
        for (Map.Entry<String, JsonElement> label : m.getAsJsonObject("labels").entrySet()) {
            labels.add(label.getKey());
            labels.add(label.getValue().getAsString());
        }
        String name = seriesText(labels);
        boolean stale = m.has("stale");
        long timestamp = m.get("timestamp").getAsLong();
        if (m.has("value")) {
            lines.add(name + " " + valueText(number(m.get("value")), stale) + " " + timestamp);
        } else if (m.has("histogram")) {
            JsonObject h = m.getAsJsonObject("histogram");
            lines.add(name + " " + histogramText(number(h.get("count")), number(h.get("sum")), stale) + " " + timestamp);
        }
    }

    /** Reads a number of the format json: NaN, +Inf and -Inf are texts. */
    static double number(JsonElement e) {
        return switch (e.getAsString()) {
            case "NaN" -> Double.NaN;
            case "+Inf" -> Double.POSITIVE_INFINITY;
            case "-Inf" -> Double.NEGATIVE_INFINITY;
            default -> Double.parseDouble(e.getAsString());
        };
    }

    /** Writes names and values of labels, in turn, as name{label="value",...}. */
    static String seriesText(List<String> labels) {
        String name = "";
        List<String> pairs = new ArrayList<>();
        for (int i = 0; i + 1 < labels.size(); i += 2) {
            if (labels.get(i).equals("__name__")) {
                name = labels.get(i + 1);
            } else {
                String value = labels.get(i + 1).replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", "\\n");
                pairs.add(labels.get(i) + "=\"" + value + "\"");
            }
        }
        return name + "{" + String.join(",", pairs) + "}";
    }

    /** Writes a value. A stale marker is a NaN of its own, told from others by its bits: the series has ended. */
    static String valueText(double v, boolean stale) {
        if (stale || Double.doubleToRawLongBits(v) == 0x7ff0000000000002L) {
            return "stale";
        }
        if (Double.isInfinite(v)) {
            return v > 0 ? "+Inf" : "-Inf";
        }
        return Double.toString(v); // NaN is "NaN"
    }

    /** Writes count and sum. The buckets are in the spans, with deltas (integers) or counts (floats). */
    static String histogramText(double count, double sum, boolean stale) {
        String text = valueText(sum, stale);
        return text.equals("stale") ? text : "histogram(count=" + valueText(count, false) + ",sum=" + text + ")";
    }
}
