package stack

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack/process"
)

// kafkaTrip sends a message through a topic's partition 0 and returns what stands at an offset of
// it.
func kafkaTrip(t *testing.T, conf *sarama.Config, broker, topic, send string, offset int64) string {
	t.Helper()
	conf.Producer.Return.Successes = true
	client, err := sarama.NewClient([]string{broker}, conf)
	require.NoError(t, err)
	defer client.Close()
	producer, err := sarama.NewSyncProducerFromClient(client)
	require.NoError(t, err)
	_, _, err = producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(send)})
	require.NoError(t, err)
	consumer, err := sarama.NewConsumerFromClient(client)
	require.NoError(t, err)
	partition, err := consumer.ConsumePartition(topic, 0, offset)
	require.NoError(t, err)
	defer partition.Close()
	select {
	case m := <-partition.Messages():
		return string(m.Value)
	case <-time.After(await.Patience):
		t.Fatal("no message")
		return ""
	}
}

// kafkaAnswers is a part of TestUpAndDown.
func kafkaAnswers(t *testing.T, lines []string) {
	t.Helper()
	line := lines[0]
	brokers, found := strings.CutPrefix(line, "KAFKA_BROKERS=")
	require.True(t, found, line)
	t.Setenv("AVIARY_TEST_KAFKA_BROKERS", brokers)
	srv := Kafka(t)
	assert.Equal(t, []string{brokers}, srv.Brokers())
	require.ErrorIs(t, srv.Kill(), process.ErrNotOwned)
	topic := srv.TopicWith(t, 1, map[string]string{"cleanup.policy": "compact"})
	// The policy wants a key: the setting has arrived.
	conf := kafkaClientConfig()
	conf.Producer.Return.Successes = true
	producer, err := sarama.NewSyncProducer(srv.Brokers(), conf)
	require.NoError(t, err)
	defer producer.Close()
	_, _, err = producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("x")})
	require.Error(t, err)
	_, _, err = producer.SendMessage(&sarama.ProducerMessage{Topic: "never-created", Value: sarama.StringEncoder("x")})
	require.ErrorIs(t, err, sarama.ErrUnknownTopicOrPartition)
}

func TestPrivateKafka(t *testing.T) {
	t.Parallel()
	srv := PrivateKafka(t, Secured(), Advertise("127.0.0.1:9"), Conf(map[string]string{"message.max.bytes": "100000"}))
	conf, err := os.ReadFile(srv.Daemon.(*kafkaBroker).confPath())
	require.NoError(t, err)
	assert.Contains(t, string(conf), "\nmessage.max.bytes=100000\n")
	t.Run("secured", func(t *testing.T) { kafkaIsSecured(t, srv) })
	t.Run("through faults", func(t *testing.T) { kafkaThroughFaults(t, srv) })
}

func kafkaThroughFaults(t *testing.T, srv *KafkaServer) {
	t.Helper()
	ctx, broker, topic := t.Context(), srv.Brokers()[0], srv.Topic(t, 1)
	require.Equal(t, "first", kafkaTrip(t, kafkaClientConfig(), broker, topic, "first", 0))

	pid := srv.PID()
	require.NotZero(t, pid)
	require.NoError(t, srv.Kill())
	require.NoError(t, srv.Kill(), "twice")
	require.Error(t, kafkaHealthy(broker))
	require.NoError(t, srv.Start(ctx))
	require.NoError(t, srv.Start(ctx), "twice")
	assert.NotEqual(t, pid, srv.PID())
	assert.Equal(t, "first", kafkaTrip(t, kafkaClientConfig(), broker, topic, "second", 0), "same data")

	require.NoError(t, srv.Pause())
	paused := kafkaClientConfig()
	paused.Net.ReadTimeout = 300 * time.Millisecond
	_, err := sarama.NewClient(srv.Brokers(), paused)
	require.Error(t, err)
	require.NoError(t, srv.Resume())
	assert.Equal(t, "second", kafkaTrip(t, kafkaClientConfig(), broker, topic, "third", 1))

	require.NoError(t, srv.Stop(ctx))
	require.NoError(t, srv.Start(ctx))
	assert.Equal(t, "third", kafkaTrip(t, kafkaClientConfig(), broker, topic, "fourth", 2))
}

// oneToken is an unsigned token, which the broker takes from anybody.
type oneToken struct{}

func (oneToken) Token() (*sarama.AccessToken, error) {
	now := time.Now().Unix()
	claims := fmt.Sprintf(`{"sub":"aviary","iat":%d,"exp":%d}`, now, now+600)
	return &sarama.AccessToken{Token: base64URL(`{"alg":"none"}`) + "." + base64URL(claims) + "."}, nil
}

func kafkaIsSecured(t *testing.T, srv *KafkaServer) {
	t.Helper()
	topic := srv.Topic(t, 1)
	sec := srv.Security()
	sent := int64(0)
	trip := func(t *testing.T, broker string, change func(*sarama.Config)) {
		t.Helper()
		conf := kafkaClientConfig()
		change(conf)
		text := t.Name()
		assert.Equal(t, text, kafkaTrip(t, conf, broker, topic, text, sent))
		sent++
	}
	password := func(mechanism sarama.SASLMechanism, hash func() *scramClient) func(*sarama.Config) {
		return func(conf *sarama.Config) {
			conf.Net.SASL.Enable, conf.Net.SASL.Mechanism = true, mechanism
			conf.Net.SASL.User, conf.Net.SASL.Password = sec.User, sec.Password
			if hash != nil {
				conf.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return hash() }
			}
		}
	}
	t.Run("plain", func(t *testing.T) { trip(t, sec.SASL, password(sarama.SASLTypePlaintext, nil)) })
	t.Run("scram-sha-256", func(t *testing.T) { trip(t, sec.SASL, password(sarama.SASLTypeSCRAMSHA256, newScram256)) })
	t.Run("scram-sha-512", func(t *testing.T) { trip(t, sec.SASL, password(sarama.SASLTypeSCRAMSHA512, newScram512)) })
	t.Run("oauthbearer", func(t *testing.T) {
		trip(t, sec.SASL, func(conf *sarama.Config) {
			conf.Net.SASL.Enable, conf.Net.SASL.Mechanism = true, sarama.SASLTypeOAuth
			conf.Net.SASL.TokenProvider = oneToken{}
		})
	})
	t.Run("wrong password", func(t *testing.T) {
		conf := kafkaClientConfig()
		password(sarama.SASLTypePlaintext, nil)(conf)
		conf.Net.SASL.Password = "wrong"
		_, err := sarama.NewClient([]string{sec.SASL}, conf)
		require.Error(t, err)
	})
	ca, err := os.ReadFile(sec.CAFile)
	require.NoError(t, err)
	trusted := func(certs ...tls.Certificate) func(*sarama.Config) {
		return func(conf *sarama.Config) {
			conf.Net.TLS.Enable = true
			conf.Net.TLS.Config = &tls.Config{RootCAs: x509.NewCertPool(), Certificates: certs}
			conf.Net.TLS.Config.RootCAs.AppendCertsFromPEM(ca)
		}
	}
	t.Run("tls", func(t *testing.T) { trip(t, sec.TLS, trusted()) })
	t.Run("mtls", func(t *testing.T) {
		cert, err := tls.LoadX509KeyPair(sec.CertFile, sec.KeyFile)
		require.NoError(t, err)
		trip(t, sec.MTLS, trusted(cert))
	})
	t.Run("mtls without certificate", func(t *testing.T) {
		conf := kafkaClientConfig()
		trusted()(conf)
		_, err := sarama.NewClient([]string{sec.MTLS}, conf)
		require.Error(t, err)
	})
	t.Run("advertised", func(t *testing.T) {
		client, err := sarama.NewClient([]string{srv.Upstream()}, kafkaClientConfig())
		require.NoError(t, err)
		defer client.Close()
		require.Len(t, client.Brokers(), 1)
		assert.Equal(t, "127.0.0.1:9", client.Brokers()[0].Addr())
	})
}

func TestFailedKafkaStartTellsWhy(t *testing.T) {
	t.Parallel()
	s := testStack(t, Config{})
	if err := s.Fetch(t.Context(), "kafka"); err != nil {
		Unavailable(t, "kafka", err)
	}
	b, err := s.newKafka(t.Context(), t.TempDir(), newOptions([]Option{Conf(map[string]string{"authorizer.class.name": "no.such.Class"})}))
	require.NoError(t, err)
	var srv process.Server
	own(t, &srv, b)
	err = srv.Start(t.Context())
	require.ErrorContains(t, err, "no.such.Class")
	assert.Zero(t, srv.PID())
}
