package clientquirks

import "github.com/apache/pulsar-client-go/pulsar"

// SetClientOptions sets the options whose defaults do harm.
//
// MemoryLimitBytes: the client's limiter can lose a wake-up (memory_limit_controller.go,
// ReleaseMemory broadcasts without the lock). A producer would then hang. The publisher bounds
// bytes itself.
//
// TLSValidateHostname: with true, every broker's certificate must be for the first host of the
// URL (client_impl.go, ServerName: hostName). That refuses the other hosts and the brokers that
// lookups lead to, and accepts the first host's certificate from each of them. With false,
// crypto/tls still verifies the name of the host that is dialed (connection.go, getTLSConfig
// leaves ServerName empty).
func SetClientOptions(o *pulsar.ClientOptions) {
	o.MemoryLimitBytes = -1
	o.TLSValidateHostname = false
}
