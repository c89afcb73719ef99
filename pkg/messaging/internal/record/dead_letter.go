package record

// DeadLetter is a message of a dead-letter topic. Its Delivery is the original's: topic, id, key,
// properties and times are those that the message had before it failed, and Attempt is the number
// of attempts that were made. Only RedeliveryCount is the dead letter's own.
type DeadLetter struct {
	Delivery
	// Reason is why the last attempt failed, at most 1 KiB of it.
	Reason string
	// Subscription is the one whose consumer gave the message up.
	Subscription string
	// Truncated is the size of the original's payload in bytes when Payload is only the beginning
	// of it, because the whole was too large for the brokers; else 0.
	Truncated int
}

// DeadLetter reads a delivery of a dead-letter topic. ok is false when no consumer of this library
// made the message. d stays as it is: [Delivery.Properties] still has the marks of the dead letter.
func (d *Delivery) DeadLetter() (letter DeadLetter, ok bool) {
	p, ok := ReadProvenance(d.Properties)
	if !ok {
		return DeadLetter{}, false
	}
	letter = DeadLetter{
		Delivery: *d, Reason: p.Reason, Subscription: p.Subscription, Truncated: p.Truncated,
	}
	p.Restore(&letter.Delivery)
	letter.Attempt = p.Attempts
	return letter, true
}
