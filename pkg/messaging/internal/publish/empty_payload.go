package publish

import (
	"maps"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// An empty payload outside batches does not arrive as it was at consumers of pulsar-client-go
// v0.21.0 (consumer_partition.go, MessageReceived): compressed it is not decompressed, and without
// compression and properties it is acknowledged and never shown. A property marks it.

// markEmpty adds PropertyEmpty to an unbatched message that needs it.
func (e *pending) markEmpty() {
	if e.msg.Payload == nil || len(e.msg.Payload) > 0 || e.msg.Properties[record.PropertyEmpty] == "true" {
		return
	}
	marked := make(map[string]string, len(e.msg.Properties)+1) // the record's own stay as they are
	maps.Copy(marked, e.msg.Properties)
	marked[record.PropertyEmpty] = "true"
	e.msg.Properties = marked
}
