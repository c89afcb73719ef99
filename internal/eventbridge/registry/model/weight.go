package model

// Weight returns the weight of the patterns of the rules, see eventpattern.Pattern.
func (s *Subscriber) Weight() (n int) {
	for i := range s.Rules {
		if p := s.Rules[i].compiled; p != nil {
			n += p.Weight()
		}
	}
	return n
}
