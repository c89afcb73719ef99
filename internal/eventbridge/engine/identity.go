package engine

import (
	"crypto/sha256"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// identity identifies an event: 128 bits of a hash of its tenant, source and id. Tenants choose
// their sources and ids themselves, so those of two tenants may be equal.
type identity [16]byte

// identityOf returns the identity of the event e, which message d has brought.
func identityOf(d *messaging.Delivery, e *event.Event) identity {
	var room [256]byte
	text := append(append(room[:0], d.Properties[model.PropertyTenant]...), 0)
	text = append(append(text, e.Source...), 0)
	sum := sha256.Sum256(append(text, e.ID...))
	return identity(sum[:len(identity{})])
}
