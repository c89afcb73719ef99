package history

import "fmt"

// Sequence watches the messages of one group, numbered from 0 in the order of the log, as they are handled or stored.
// Messages may come again after a failure, and then all behind them must, too: each one that comes is at most the one
// behind the last, and the last of all is the newest. The zero Sequence has seen nothing.
type Sequence struct {
	next    int
	excused map[int]bool
}

// Excuse lets message n be left out from now on.
func (s *Sequence) Excuse(n int) {
	if s.excused == nil {
		s.excused = make(map[int]bool)
	}
	s.excused[n] = true
}

// expected is the message that has to come next unless an older one does.
func (s *Sequence) expected() int {
	for s.excused[s.next] {
		s.next++
	}
	return s.next
}

// See notes that message n was handled. It fails when a message before n was left out.
func (s *Sequence) See(n int) error {
	expected := s.expected()
	s.next = n + 1
	if n > expected {
		return fmt.Errorf("message %d came where message %d, or an older one, was expected", n, expected)
	}
	return nil
}

// Fail notes that message n was tried and has to come again. It fails when a message before n was left out.
func (s *Sequence) Fail(n int) error {
	err := s.See(n)
	s.next = n
	return err
}

// End fails unless the newest of n messages was the last to come.
func (s *Sequence) End(n int) error {
	if s.expected() < n {
		return fmt.Errorf("message %d came last, the newest is %d", s.next-1, n-1)
	}
	return nil
}

// InOrder checks the messages seen of a group that has n.
func InOrder(seen []int, n int) error {
	var s Sequence
	for _, i := range seen {
		if err := s.See(i); err != nil {
			return err
		}
	}
	return s.End(n)
}
