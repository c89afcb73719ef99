package clientquirks_test

import (
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

type watcher struct{ chunks, corrupted chan struct{} }

func (w watcher) NoteChunksGivenUp()        { w.chunks <- struct{}{} }
func (w watcher) NoteCorrupted(*zap.Logger) { w.corrupted <- struct{}{} }

func TestLogLinesReachTheConsumersWatcher(t *testing.T) {
	s := start(t)
	var watched clientquirks.Watched
	mine, other := watcher{make(chan struct{}, 9), make(chan struct{}, 9)}, watcher{make(chan struct{}, 9), make(chan struct{}, 9)}
	watched.Store("mine", mine)
	watched.Store("other", other)
	c := connect(t, s.URL(), func(o *pulsar.ClientOptions) {
		o.Logger = clientquirks.NewLogger(zap.NewNop(), &watched)
	})
	corrupt := s.CorruptDispatch(topic, 1)
	s.Publish(topic, fakebroker.Message{Payload: []byte("corrupted")})
	subscribe(t, c, func(o *pulsar.ConsumerOptions) { o.Name, o.MaxPendingChunkedMessage = "mine", 1 })
	require.NoError(t, corrupt.Wait(patient(t), 1))
	<-mine.corrupted
	for _, uuid := range []string{"a", "b"} { // the first chunks of two messages
		chunk := protowire.AppendString(protowire.AppendTag(nil, 26, protowire.BytesType), uuid)
		for field, v := range map[protowire.Number]uint64{27: 2, 28: 200, 29: 0} { // chunks, bytes, number
			chunk = protowire.AppendVarint(protowire.AppendTag(chunk, field, protowire.VarintType), v)
		}
		s.PublishRaw(topic, entry(chunk, "chunk"), 1)
	}
	<-mine.chunks
	require.Empty(t, other.corrupted)
	require.Empty(t, other.chunks)
}
