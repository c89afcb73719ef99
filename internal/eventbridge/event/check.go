package event

// Check reports what is wrong with a JSON value by the rules for bodies of events: RFC 8259, UTF-8,
// no duplicate keys in an object, and the bounds of depth and of values. The error is an [*Error].
// It is safe for concurrent use.
func Check(value []byte) error {
	var p Parser
	p.prepare(value, 0) // no members are kept
	defer p.done()
	switch {
	case p.scan.document() == nil:
		return p.scan.err
	case p.scan.fault != nil:
		return p.scan.fault
	}
	return nil
}
