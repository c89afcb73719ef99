package clientquirks

import (
	rawbackoff "github.com/apache/pulsar-client-go/pulsar/backoff"

	"github.com/aviaryhq/aviary/pkg/backoff"
)

// NewBackoff makes the policy by which the underlying client reconnects.
func NewBackoff() rawbackoff.Policy { return new(backoff.Backoff) }
