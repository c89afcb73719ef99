package history

import "fmt"

// Sequence watches the messages of one group, numbered from 0 in the order of the log, as they are handled or stored.
// Messages may come again after a failure, and then all behind them must, too: each one that comes is at most the one
// behind the last, and the last of all is the newest. The zero Sequence has seen nothing.
type Sequence struct{ next int }

// See notes that message n was handled. It fails when a message before n was left out.
func (s *Sequence) See(n int) error {
	expected := s.next
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

// Next is the number of the message that comes next if none comes again.
func (s *Sequence) Next() int { return s.next }

// End fails unless the newest of n messages was the last to come.
func (s *Sequence) End(n int) error {
	if s.next != n {
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
