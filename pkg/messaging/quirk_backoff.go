package messaging

import (
	rawbackoff "github.com/apache/pulsar-client-go/pulsar/backoff"

	"github.com/aviaryhq/aviary/pkg/backoff"
)

// newBackoff makes the policy by which the underlying client reconnects.
func newBackoff() rawbackoff.Policy { return new(backoff.Backoff) }
