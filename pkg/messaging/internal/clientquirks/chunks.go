package clientquirks

import (
	"reflect"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// ChunksExpire is how long the client waits for the rest of a chunked message. Then it drops the
// chunks, and a consumer acknowledges them (consumer_partition.go, discardChunkIfExpire). For
// each chunked message a goroutine sleeps that long, also after the message is whole or the
// consumer is closed, and keeps the consumer's memory.
const ChunksExpire = 10 * time.Minute

// ChunkedIDs recognises ids of chunked messages. An id has no method for that: a chunked
// message's id has another type, whose text is "first chunk;last chunk" (impl_message.go,
// chunkMessageID). Making the text costs, so the type of other ids is remembered. If the client
// changes the text, chunked messages are read from their last chunk, and a cumulative
// acknowledgement includes foreign chunks. The zero value is ready; it is not safe for concurrent
// use.
type ChunkedIDs struct{ plain reflect.Type }

// Has reports whether id, which is not of a batch, is of a chunked message.
func (c *ChunkedIDs) Has(id pulsar.MessageID) bool {
	kind := reflect.TypeOf(id)
	if kind == c.plain {
		return false
	}
	if strings.Contains(id.String(), ";") {
		return true
	}
	c.plain = kind
	return false
}
