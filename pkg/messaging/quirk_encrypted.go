package messaging

import (
	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
)

// showEncrypted has the underlying client hand over what it has no key for. By default it drops
// that without a word.
func showEncrypted() *pulsar.MessageDecryptionInfo {
	return &pulsar.MessageDecryptionInfo{ConsumerCryptoFailureAction: crypto.ConsumerCryptoFailureActionConsume}
}
