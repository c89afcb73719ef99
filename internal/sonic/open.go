package sonic

import (
	"net"

	"go.uber.org/zap"
)

// warnOpen says in the log who may connect that perhaps should not: Redis refuses such clients in its protected mode. Sonic does not, for its
// address may be one that a firewall or a container's network keeps private.
func (c Config) warnOpen(log *zap.Logger, at net.Addr) {
	if tcp, ok := at.(*net.TCPAddr); ok && tcp.IP.IsLoopback() {
		return
	}
	address := zap.Stringer("address", at)
	switch known := c.TLS.ClientCAFile != ""; {
	case len(c.Users) == 0 && !known:
		log.Warn("everybody who reaches this address may read and write all keys: set users or tls.client_ca_file, or keep the address private", address)
	case len(c.Users) > 0 && !c.TLS.enabled():
		log.Warn("users send their passwords to this address without encryption: set tls, or keep the address private", address)
	}
}

// warnAlone says in the log that nobody may rely on Pulsar where nothing is stored there.
func (c Config) warnAlone(log *zap.Logger) {
	if c.Ack == ackPublished && len(c.zones()) == 1 {
		log.Warn("ack published is as local here: zones names no other zone, and one that is alone stores nothing in Pulsar")
	}
}
