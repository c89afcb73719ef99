package clientquirks

import (
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	rawbackoff "github.com/apache/pulsar-client-go/pulsar/backoff"
	"github.com/apache/pulsar-client-go/pulsar/crypto"

	"github.com/aviaryhq/aviary/pkg/backoff"
)

// NewBackoff returns the policy by which the client reconnects.
func NewBackoff() rawbackoff.Policy { return new(backoff.Backoff) }

// Never is an interval of the client's that does not pass. Zero would mean the client's default.
const Never = 1000 * 24 * time.Hour

// SetClientOptions sets the options whose defaults do harm.
//
// MemoryLimitBytes: the client's limiter can lose a wake-up (memory_limit_controller.go,
// ReleaseMemory broadcasts without the lock), and a producer hangs. The publisher bounds bytes
// itself.
//
// TLSValidateHostname: with true, every broker's certificate must be for the first host of the
// URL (client_impl.go, ServerName: hostName). That refuses the other hosts and the brokers that
// lookups lead to, and accepts the first host's certificate from each of them. With false,
// crypto/tls still verifies the host that is dialed (connection.go, getTLSConfig).
func SetClientOptions(o *pulsar.ClientOptions) {
	o.MemoryLimitBytes = -1
	o.TLSValidateHostname = false
}

// ShowEncrypted makes the client hand over encrypted messages. By default it gives a message that
// it has no key for back to the broker, again and again (consumer_partition.go, MessageReceived).
// If the client changes, a reader passes over encrypted messages and a consumer does not count
// them.
func ShowEncrypted() *pulsar.MessageDecryptionInfo {
	return &pulsar.MessageDecryptionInfo{ConsumerCryptoFailureAction: crypto.ConsumerCryptoFailureActionConsume}
}
