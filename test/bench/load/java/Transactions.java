import java.util.HashMap;
import java.util.concurrent.*;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.shade.com.fasterxml.jackson.databind.ObjectMapper;

/**
 * Transactions publishes messages in transactions. Arguments: the URL, and the listener's name. Standard input has one
 * JSON object for each transaction, standard output one for each that has ended. Without messages it only opens the
 * producer.
 */
class Transactions {
    record Message(String key, byte[] payload) {}

    record Begin(long number, int producer, String topic, boolean abort, Message[] messages) {}

    /** Answer has the microseconds of the commit or abort, or an error. */
    record Answer(long number, String error, long micros) {}

    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        var options = PulsarClient.builder().serviceUrl(args[0]).enableTransaction(true).memoryLimit(0, SizeUnit.BYTES);
        if (!args[1].isEmpty()) {
            options.listenerName(args[1]);
        }
        var producers = new HashMap<Integer, Producer<byte[]>>();
        try (var client = options.build(); var input = JSON.readerFor(Begin.class).<Begin>readValues(System.in)) {
            while (input.hasNextValue()) {
                var next = input.nextValue();
                if (!producers.containsKey(next.producer)) {
                    producers.put(next.producer, client.newProducer().topic(next.topic).sendTimeout(0, TimeUnit.SECONDS)
                            .compressionType(CompressionType.LZ4).create());
                }
                if (next.messages.length == 0) {
                    answer(new Answer(next.number, "", 0));
                } else {
                    publish(client, producers.get(next.producer), next);
                }
            }
        }
    }

    private static void publish(PulsarClient client, Producer<byte[]> producer, Begin next) {
        var began = new long[1];
        client.newTransaction().withTransactionTimeout(1, TimeUnit.MINUTES).build().thenCompose(txn -> {
            var sent = new CompletableFuture<?>[next.messages.length];
            for (int i = 0; i < sent.length; i++) {
                var message = producer.newMessage(txn).value(next.messages[i].payload);
                sent[i] = (next.messages[i].key.isEmpty() ? message : message.key(next.messages[i].key)).sendAsync();
            }
            producer.flushAsync();
            return CompletableFuture.allOf(sent).thenCompose(all -> {
                began[0] = System.nanoTime();
                return next.abort ? txn.abort() : txn.commit();
            });
        }).whenComplete((done, error) -> answer(
                new Answer(next.number, error == null ? "" : error.toString(), (System.nanoTime() - began[0]) / 1000)));
    }

    private static synchronized void answer(Answer answer) {
        try {
            System.out.println(JSON.writeValueAsString(answer));
        } catch (Exception e) {
            System.exit(1); // not possible: all fields are numbers or text
        }
    }
}
