package clientquirks

import (
	"time"

	rawbackoff "github.com/apache/pulsar-client-go/pulsar/backoff"

	"github.com/aviaryhq/aviary/pkg/backoff"
)

// NewBackoff returns the policy by which the client reconnects.
func NewBackoff() rawbackoff.Policy { return new(backoff.Backoff) }

// Never is an interval of the client's that does not pass. Zero would mean the client's default.
const Never = 1000 * 24 * time.Hour
