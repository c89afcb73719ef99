package clientquirks_test

import (
	"strings"
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
)

func TestIDsOfChunkedMessagesAreRecognised(t *testing.T) {
	s := start(t)
	c := connect(t, s.URL(), nil)
	p := produce(t, c, func(o *pulsar.ProducerOptions) { o.EnableChunking, o.ChunkMaxMessageSize = true, 1000 })
	consumer := subscribe(t, c, nil)
	var chunked clientquirks.ChunkedIDs
	for _, size := range []int{10, 1500, 10, 1500, 1500} {
		_, err := p.Send(patient(t), &pulsar.ProducerMessage{Payload: []byte(strings.Repeat("x", size))})
		require.NoError(t, err)
		m := receive(t, consumer)
		require.Len(t, m.Payload(), size)
		require.Equal(t, size > 1000, chunked.Has(m.ID()))
	}
}
