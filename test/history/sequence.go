package history

import "fmt"

// Sequence watches the messages of one group, numbered from 0 in the order of the log, as they are
// handled or stored. Messages may come again after a failure, and then all behind them must, too:
// each one that comes is at most the one behind the last, and the last of all is the newest. The
// zero Sequence has seen nothing.
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

// Fail notes that message n was tried and has to come again. It fails when a message before n was
// left out.
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

// Followed watches the messages of one group at a place that may keep some of those that are sent
// together and get them all again because of the others: what counts is that the last time that a
// message comes is behind the last time that the one before it does. The zero Followed has seen
// nothing.
type Followed struct {
	last  map[int]int // by message: when it came last
	total int
}

// See notes that message n came.
func (f *Followed) See(n int) {
	if f.last == nil {
		f.last = make(map[int]int)
	}
	f.total++
	f.last[n] = f.total
}

// End fails unless each of n messages came, and was followed by all behind it the last time that it
// came.
func (f *Followed) End(n int) error {
	for i := range n {
		if f.last[i] == 0 {
			return fmt.Errorf("message %d of %d never came", i, n)
		}
		if i > 0 && f.last[i] < f.last[i-1] {
			return fmt.Errorf("message %d came again and was not followed by message %d", i-1, i)
		}
	}
	return nil
}
