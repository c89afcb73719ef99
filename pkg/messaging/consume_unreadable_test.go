package messaging_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/fakebroker"
	"github.com/aviaryhq/aviary/test/stack"
)

const unreadable = "aviary_messaging_unreadable_messages_total"

// keys are what producers encrypt with, and consumers decrypt.
func keys(t *testing.T) crypto.KeyReader {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	require.NoError(t, err)
	dir := t.TempDir()
	write := func(name, kind string, b []byte) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600))
		return file
	}
	return crypto.NewFileKeyReader(write("public", "PUBLIC KEY", public),
		write("private", "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key)))
}

// producer makes one that encrypts with keys, or not without them. Its messages are not batched.
func producer(t *testing.T, c pulsar.Client, topic string, keys crypto.KeyReader) pulsar.Producer {
	t.Helper()
	options := pulsar.ProducerOptions{Topic: topic, DisableBatching: true}
	if keys != nil {
		options.Encryption = &pulsar.ProducerEncryptionInfo{KeyReader: keys, Keys: []string{"app"}}
	}
	p, err := c.CreateProducer(options)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// rawClient is a client of the library underneath.
func rawClient(t *testing.T, url string) pulsar.Client {
	t.Helper()
	c, err := pulsar.NewClient(pulsar.ClientOptions{URL: url, Logger: log.DefaultNopLogger(), MetricsRegisterer: prometheus.NewRegistry()})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// Of plain and encrypted messages the plain ones are handled. The others stay in the subscription
// for a consumer that has the key.
func TestEncryptedMessagesStayInTheSubscription(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	ns, keys, raw := srv.Namespace(t), keys(t), rawClient(t, srv.URL())
	for _, kind := range []messaging.SubscriptionType{messaging.Failover, messaging.Exclusive, messaging.Shared, messaging.KeyShared} {
		t.Run(string(kind), func(t *testing.T) {
			topic := srv.Topic(t, ns, 0)
			plain, secret := producer(t, raw, topic, nil), producer(t, raw, topic, keys)
			for i, p := range []pulsar.Producer{plain, secret, plain, secret, plain} {
				_, err := p.Send(testContext(t), &pulsar.ProducerMessage{Payload: []byte(strconv.Itoa(i)), Key: "k"})
				require.NoError(t, err)
			}

			reg := prometheus.NewRegistry()
			client := dial(t, srv.URL(), messaging.WithRegisterer(reg))
			cfg := consumerConfig(topic, kind)
			var got payloads
			r := start(t, client, cfg, func(_ context.Context, d *messaging.Delivery) error {
				got.add(d)
				return nil
			})
			eventually(t, "the plain messages are handled", func() bool { return len(got.list()) == 3 })
			r.stop(t)
			require.Equal(t, []string{"0", "2", "4"}, got.list())
			require.Equal(t, 2, counted(t, reg, unreadable, "encrypted", "sub"))

			c, err := raw.Subscribe(pulsar.ConsumerOptions{
				Topic: topic, SubscriptionName: "sub", Type: rawType(kind), Decryption: &pulsar.MessageDecryptionInfo{KeyReader: keys},
			})
			require.NoError(t, err)
			defer c.Close()
			for _, want := range []string{"1", "3"} {
				m, err := c.Receive(testContext(t))
				require.NoError(t, err)
				require.Equal(t, want, string(m.Payload()))
			}

			all, err := client.Reader(testContext(t), messaging.ReaderConfig{Topic: topic, Name: "reader"})
			require.NoError(t, err)
			defer func() { require.NoError(t, all.Close(testContext(t))) }()
			d, err := all.Next(testContext(t))
			require.NoError(t, err)
			require.Equal(t, "0", string(d.Payload))
			_, err = all.Next(testContext(t))
			require.ErrorIs(t, err, messaging.ErrEncrypted, "a reader leaves nothing out")
		})
	}
}

// An encrypted message is the first that a standby receives: it stays in the subscription.
func TestEncryptedMessageStaysThroughATakeover(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 0)
	secret := producer(t, rawClient(t, s.URL()), topic, keys(t))
	var got payloads
	handle := func(_ context.Context, d *messaging.Delivery) error {
		got.add(d)
		return nil
	}
	first := start(t, dial(t, s.URL()), quickConfig(messaging.Failover, ""), handle)
	s.Publish(topic, fakebroker.Message{Payload: []byte("0")})
	eventually(t, "the first consumer has the partition", func() bool { return len(got.list()) == 1 })
	second := start(t, dial(t, s.URL()), quickConfig(messaging.Failover, ""), handle)
	require.NoError(t, s.WaitConsumers(testContext(t), topic, "sub", 2))
	_, err := secret.Send(testContext(t), &pulsar.ProducerMessage{Payload: []byte("secret")})
	require.NoError(t, err)
	s.Publish(topic, fakebroker.Message{Payload: []byte("2")})
	eventually(t, "what is behind the encrypted message is handled", func() bool { return len(got.list()) == 2 })
	first.stop(t)
	s.Publish(topic, fakebroker.Message{Payload: []byte("3")})
	eventually(t, "the second consumer has the partition", func() bool { return len(got.list()) == 3 })
	second.stop(t)
	require.Equal(t, []string{"0", "2", "3"}, got.list())
	require.Equal(t, 1, s.Backlog(topic, "sub"), "the encrypted message")
}

func rawType(kind messaging.SubscriptionType) pulsar.SubscriptionType {
	return map[messaging.SubscriptionType]pulsar.SubscriptionType{
		messaging.Exclusive: pulsar.Exclusive, messaging.Failover: pulsar.Failover,
		messaging.Shared: pulsar.Shared, messaging.KeyShared: pulsar.KeyShared,
	}[kind]
}

// The consumer restarts when the first chunk of a message has arrived and no message in chunks was
// whole yet.
func TestChunkBeforeAnotherMessageSurvivesARestart(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 0)
	client := dial(t, s.URL())
	var got payloads
	handle := func(_ context.Context, d *messaging.Delivery) error {
		got.add(&messaging.Delivery{Payload: d.Payload[:1]})
		return nil
	}
	cfg := quickConfig(messaging.Exclusive, "")
	r := start(t, client, cfg, handle)
	s.Publish(topic, fakebroker.Message{Payload: []byte("a")})
	eventually(t, "the first message is handled", func() bool { return len(got.list()) == 1 })
	chunks := firstOfTwo(t, s, chunking(t, s), "x")
	s.Publish(topic, fakebroker.Message{Payload: []byte("b")})
	eventually(t, "the message behind the chunk is handled", func() bool { return len(got.list()) == 2 })
	r.stop(t)
	require.Equal(t, 1, s.Backlog(topic, "sub"), "the chunk")
	r = start(t, client, cfg, handle)
	chunks.Release()
	eventually(t, "the message in chunks is handled", func() bool { return len(got.list()) == 3 })
	r.stop(t)
	require.Equal(t, []string{"a", "b", "x"}, got.list())
	require.Zero(t, s.Backlog(topic, "sub"))
}

// More messages in chunks stand between each other than the client underneath keeps.
func TestManyMessagesInChunksBetweenEachOther(t *testing.T) {
	t.Parallel()
	const n = 130
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 0)
	reg := prometheus.NewRegistry()
	client := dial(t, s.URL(), messaging.WithRegisterer(reg))
	messaging.SetResubscribeForChunks(client, 100*time.Millisecond)
	chunks := s.HoldEntries(topic)
	for i, p := range chunkingProducers(t, s, n) {
		payload := append([]byte(strconv.Itoa(i)), make([]byte, 1500)...)
		p.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: payload}, func(pulsar.MessageID, *pulsar.ProducerMessage, error) {})
		eventually(t, "its two chunks are on their way", func() bool { return chunks.Held() == 2*(i+1) })
	}
	first := make([]int, n)
	for i := range first {
		first[i] = 2 * i
	}
	var got payloads
	r := start(t, client, quickConfig(messaging.Exclusive, ""), func(_ context.Context, d *messaging.Delivery) error {
		got.add(&messaging.Delivery{Payload: d.Payload[:len(d.Payload)-1500]})
		return nil
	})
	chunks.ReleaseOnly(first...)
	eventually(t, "one is given up", func() bool { return counted(t, reg, unreadable, "chunks", "sub") > 0 })
	chunks.Release()
	eventually(t, "all messages are handled", func() bool { return len(got.list()) >= n })
	r.stop(t)
	seen := make(map[string]bool)
	for _, m := range got.list() {
		seen[m] = true
	}
	require.Len(t, seen, n)
	require.Len(t, got.list(), n, "none twice")
	require.Zero(t, s.Backlog(topic, "sub"))
}

// The client underneath acknowledges a message that it cannot read: that is counted and logged.
func TestCorruptedMessageIsReported(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	reg, logged := prometheus.NewRegistry(), newTranscript()
	client := dial(t, s.URL(), messaging.WithRegisterer(reg), messaging.WithLogger(logged.logger()))
	s.Publish(topic, fakebroker.Message{Payload: []byte("corrupted")})
	s.CorruptDispatch(topic, 1)
	var got payloads
	r := start(t, client, quickConfig(messaging.Exclusive, ""), func(_ context.Context, d *messaging.Delivery) error {
		got.add(d)
		return nil
	})
	eventually(t, "it is counted", func() bool { return counted(t, reg, unreadable, "corrupted", "sub") == 1 })
	logged.until(t, "a corrupted message was acknowledged")
	s.Publish(topic, fakebroker.Message{Payload: []byte("next")})
	eventually(t, "the next one is handled", func() bool { return len(got.list()) == 1 })
	r.stop(t)
}
