package sonic

import (
	"net"

	"go.uber.org/zap"
)

// warnUnprotected logs a warning if clients without a password or a certificate can connect, or if
// passwords are sent unencrypted. Redis in its protected mode would refuse clients without a
// password. Sonic does not: a firewall or a container's network may keep its address private.
func (c Config) warnUnprotected(log *zap.Logger, at net.Addr) {
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

// warnNoOtherZone logs a warning if ack is published and there is no other zone: Sonic then stores
// nothing in Pulsar.
func (c Config) warnNoOtherZone(log *zap.Logger) {
	if c.Ack == ackPublished && len(c.zones()) == 1 {
		log.Warn("ack: published has the effect of ack: local here: zones names no other zone, and a zone that is alone stores nothing in Pulsar")
	}
}
