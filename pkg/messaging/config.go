package messaging

import (
	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
)

// Config says how to reach one Pulsar cluster.
type Config = cluster.Config

// TLS configures the transport of pulsar+ssl and https URLs, version 1.2 or newer.
type TLS = cluster.TLS

// Auth holds at most one way of authenticating.
type Auth = cluster.Auth

// OAuth2 configures the client credentials flow (RFC 6749, section 4.4).
type OAuth2 = cluster.OAuth2

// DefaultConfig is the configuration of a broker on this machine.
func DefaultConfig() Config { return cluster.DefaultConfig() }
