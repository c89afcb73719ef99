package clientquirks

import "github.com/apache/pulsar-client-go/pulsar"

// CloseReceiving closes a consumer and meanwhile discards the messages that it delivers to ch; the
// broker delivers them again. The broker's answer to the close comes behind messages that are on
// their way, and a connection stops reading when a consumer's queue is full (consumer_partition.go,
// MessageReceived blocks on queueCh). Without this, Close and every other user of the connection
// would hang until the operation timeout. When the client closes without the answer, raw.Close
// does.
func CloseReceiving(raw interface{ Close() }, ch <-chan pulsar.ConsumerMessage) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		raw.Close()
	}()
	for {
		select {
		case <-ch:
		case <-closed:
			return
		}
	}
}
