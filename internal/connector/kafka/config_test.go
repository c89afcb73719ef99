package kafka_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/connector/kafka"
)

func paths(cfg any) []string {
	var list []string
	for _, fault := range config.Validate(cfg) {
		list = append(list, fault.Path)
	}
	return list
}

func TestFaultsAreFoundAtOnceAndByPath(t *testing.T) {
	source := kafka.DefaultSourceConfig()
	assert.Equal(t, []string{"group", "topics"}, paths(source), "what has no default")
	source.Group, source.Topics = "g", []string{"t"}
	require.NoError(t, source.Validate())
	assert.Empty(t, paths(source))
	assert.Empty(t, paths(kafka.DefaultSinkConfig()))

	source.Brokers, source.Topics, source.Pattern = []string{"nowhere", ":9092"}, []string{"a/b"}, "("
	source.TLS.CAFile, source.TLS.CertFile = "/no/ca", "/no/cert"
	source.SASL = kafka.SASL{Mechanism: "PLAIN"}
	source.IsolationLevel, source.OnGap = "serializable", "panic"
	source.DrainTimeout = source.RequestTimeout
	source.BufferBytes = 1
	assert.Equal(t, []string{
		"brokers[0]", "brokers[1]", "tls.ca_file", "tls.cert_file", "tls.enabled", "sasl.username", "sasl.password", "topics", "topics[0]", "pattern",
		"isolation_level", "on_gap", "drain_timeout", "buffer_bytes",
	}, paths(source))

	sink := kafka.DefaultSinkConfig()
	sink.Topic, sink.Partition, sink.Compression, sink.MissingTopic = "a b", "hash", "brotli", "panic"
	sink.Linger, sink.CreatePartitions, sink.MaxMessageBytes = -1, 0, 0
	sink.SASL = kafka.SASL{Mechanism: "OAUTHBEARER"}
	assert.Equal(t, []string{
		"sasl", "topic", "partition", "compression", "missing_topic", "max_message_bytes", "linger", "create_partitions",
	}, paths(sink))
	sink = kafka.DefaultSinkConfig()
	sink.SASL = kafka.SASL{Mechanism: "GSSAPI"}
	assert.Equal(t, []string{"sasl.mechanism"}, paths(sink))
	sink.SASL = kafka.SASL{Mechanism: "OAUTHBEARER", OAuth2: kafka.OAuth2{TokenURL: "ftp://x"}}
	assert.Equal(t, []string{"sasl.oauth2.token_url", "sasl.oauth2.client_id", "sasl.oauth2.client_secret"}, paths(sink))
}
