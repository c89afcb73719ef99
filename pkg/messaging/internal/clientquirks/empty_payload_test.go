package clientquirks_test

import (
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
)

func TestEmptyPayloadComesCompressed(t *testing.T) {
	for name, c := range map[string]struct {
		compression pulsar.CompressionType
		received    int
	}{"none": {pulsar.NoCompression, 0}, "LZ4": {pulsar.LZ4, 1}, "ZSTD": {pulsar.ZSTD, 9}} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			client := connect(t, s.URL(), nil)
			p := produce(t, client, func(o *pulsar.ProducerOptions) { o.CompressionType = c.compression })
			consumer := subscribe(t, client, nil)
			for _, properties := range []map[string]string{nil, {"a": "b"}} {
				_, err := p.Send(patient(t), &pulsar.ProducerMessage{Payload: []byte{}, Properties: properties})
				require.NoError(t, err)
				if c.compression == pulsar.NoCompression && properties == nil {
					continue // acknowledged and not shown
				}
				m := receive(t, consumer)
				require.Len(t, m.Properties(), len(properties))
				require.Len(t, m.Payload(), c.received, "decompressed, it would be empty")
				require.True(t, clientquirks.CompressedNothing(m.Payload()))
			}
		})
	}
	require.False(t, clientquirks.CompressedNothing([]byte("a")))
}
