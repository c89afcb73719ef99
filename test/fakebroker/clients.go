package fakebroker

// A client is known by what it authenticates with, for instance a token: whatever it is, it is
// accepted.

// Dispatch is one entry sent to one consumer.
type Dispatch struct {
	// Topic is the partition's name.
	Topic string
	// Entry is the entry's id in its ledger, Key its first message's ordering key or key.
	Entry uint64
	Key   string
	// Subscription and Identity say which consumer of which client it went to.
	Subscription string
	Identity     string
}

// Dispatches lists the dispatches of a server made with WithDispatchLog, in their order.
func (s *Server) Dispatches() []Dispatch {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.journal[:len(s.journal):len(s.journal)]
}

// Clock counts the dispatches so far: what happens in a client while it is n happens behind
// Dispatches()[:n].
func (s *Server) Clock() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.journal)
}

func (s *Server) noteDispatch(co *consumer, i int) {
	if s.journaling {
		p := co.sub.p
		s.journal = append(s.journal, Dispatch{
			Topic: p.name, Entry: uint64(i), Key: p.entries[i].key, Subscription: co.sub.name, Identity: co.c.identity,
		})
	}
}

// CutConnectionsOf closes the connections of one client. It returns how many there were.
func (s *Server) CutConnectionsOf(identity string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.notify()
	return s.cut(func(c *conn) bool { return c.identity == identity })
}

// Isolate closes the connections of one client and refuses its new ones until Admit.
func (s *Server) Isolate(identity string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isolated[identity] = struct{}{}
	s.cut(func(c *conn) bool { return c.identity == identity })
	s.notify()
}

// Admit ends an Isolate.
func (s *Server) Admit(identity string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.isolated, identity)
}

// cut closes the connections that match.
func (s *Server) cut(match func(*conn) bool) int {
	var all []*conn
	for c := range s.conns {
		if match(c) {
			all = append(all, c)
		}
	}
	// Without permits none of them is sent what the ones closed before it leave behind.
	for _, c := range all {
		for _, co := range c.consumers {
			co.permits = 0
		}
	}
	for _, c := range all {
		c.close()
	}
	return len(all)
}
