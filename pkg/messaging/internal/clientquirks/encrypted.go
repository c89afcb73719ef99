package clientquirks

import (
	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
)

// ShowEncrypted makes the client hand over encrypted messages, with an encryption context. By
// default it does not show a message that it has no key for: it gives it back to the broker,
// again and again, and writes a log line (consumer_partition.go, MessageReceived). If the client
// changes, a reader passes over encrypted messages and a consumer does not count them.
func ShowEncrypted() *pulsar.MessageDecryptionInfo {
	return &pulsar.MessageDecryptionInfo{ConsumerCryptoFailureAction: crypto.ConsumerCryptoFailureActionConsume}
}
