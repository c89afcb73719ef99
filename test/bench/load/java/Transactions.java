import java.io.*;
import java.util.ArrayList;
import java.util.concurrent.*;
import org.apache.pulsar.client.api.*;

/**
 * Transactions publishes messages in transactions. Arguments: the URL, and the listener's name.
 *
 * <p>Standard input: 'P' and a topic open the next producer. 'T' begins a transaction: its number, the number of its
 * producer, 1 to abort it, and its messages with their keys. Standard output has one answer for each: the number of
 * the transaction (-1 for a producer), 1 if it failed, and the microseconds of the commit or abort.
 */
class Transactions {
    private static final DataOutputStream OUT = new DataOutputStream(new BufferedOutputStream(System.out));

    public static void main(String[] args) throws Exception {
        var options = PulsarClient.builder().serviceUrl(args[0]).enableTransaction(true).memoryLimit(0, SizeUnit.BYTES);
        if (!args[1].isEmpty()) {
            options.listenerName(args[1]);
        }
        var in = new DataInputStream(new BufferedInputStream(System.in));
        var producers = new ArrayList<Producer<byte[]>>();
        try (var client = options.build()) {
            for (int kind = in.read(); kind >= 0; kind = in.read()) {
                if (kind == 'P') {
                    producers.add(client.newProducer().topic(in.readUTF()).sendTimeout(0, TimeUnit.SECONDS)
                            .compressionType(CompressionType.LZ4).create());
                    answer(-1, null, 0);
                } else {
                    transaction(client, producers, in);
                }
            }
        }
    }

    private static void transaction(PulsarClient client, ArrayList<Producer<byte[]>> producers, DataInputStream in)
            throws Exception {
        long id = in.readLong();
        var producer = producers.get(in.readInt());
        boolean abort = in.readBoolean();
        var keys = new String[in.readInt()];
        var payloads = new byte[keys.length][];
        for (int i = 0; i < keys.length; i++) {
            keys[i] = in.readUTF();
            payloads[i] = in.readNBytes(in.readInt());
        }
        var began = new long[1];
        client.newTransaction().withTransactionTimeout(1, TimeUnit.MINUTES).build().thenCompose(txn -> {
            var sent = new CompletableFuture<?>[keys.length];
            for (int i = 0; i < keys.length; i++) {
                var message = producer.newMessage(txn).value(payloads[i]);
                sent[i] = (keys[i].isEmpty() ? message : message.key(keys[i])).sendAsync();
            }
            producer.flushAsync();
            return CompletableFuture.allOf(sent).thenCompose(all -> {
                began[0] = System.nanoTime();
                return abort ? txn.abort() : txn.commit();
            });
        }).whenComplete((done, error) -> answer(id, error, (int) ((System.nanoTime() - began[0]) / 1000)));
    }

    private static void answer(long id, Throwable error, int micros) {
        if (error != null) {
            System.err.println("bench: a transaction failed: " + error);
        }
        synchronized (OUT) {
            try {
                OUT.writeLong(id);
                OUT.writeBoolean(error != null);
                OUT.writeInt(micros);
                OUT.flush();
            } catch (IOException e) {
                System.exit(1); // the parent is gone
            }
        }
    }
}
