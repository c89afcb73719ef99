package upstream

// Server is the Redis that a connection leads to.
type Server struct {
	Address  string
	RunID    string   // the run_id of the Redis
	ClientID string   // of the connection, as CLIENT ID returns it
	known    *Primary // the primary that was known before the connect
}

// Primary is the Redis that connections may lead to. An empty field is unknown, and matches every
// server.
type Primary struct{ address, runID string }

// SetPrimary sets which Redis is the primary: its address, its run_id, or both; an empty string
// means unknown. Without an address the previous one remains.
func (d *Dialer) SetPrimary(address, server string) *Primary {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := &Primary{address, server}
	if before := d.primary.Load(); before != nil && address == "" {
		now.address = before.address
	}
	d.primary.Store(now)
	return now
}

// Other reports whether a connection leads to another Redis than the primary.
func (m *Primary) Other(to Server) bool {
	return m.address != "" && m.address != to.Address || m.runID != "" && m.runID != to.RunID
}

// Outdated reports whether a connection leads to another Redis than the primary. It compares the
// run_id only if SetPrimary was called after the connect began: an earlier run_id may belong to a
// process that has ended since.
func (d *Dialer) Outdated(to Server) bool {
	now := d.primary.Load()
	if now == nil {
		return false
	}
	if now == to.known {
		return (&Primary{address: now.address}).Other(to)
	}
	return now.Other(to)
}
