package proxy

// moveWatchers makes commands that wait for keys wait at the primaries that have them now.
func (l *loop) moveWatchers() {
	var moved []*blockedCommand // those that wait for the same key in order of arrival
	for key, w := range l.watchers {
		gone := !l.isPrimary(key.primary)
		for _, all := range w.commands {
			for _, one := range all {
				if gone || l.slots.Owner(one.slot) != key.primary {
					moved = append(moved, one)
				}
			}
		}
		if gone {
			delete(l.watchers, key)
			w.b.failAll()
			w.b.discard()
		}
	}
	for _, one := range moved { // the second time for another key is harmless
		if !one.ended {
			one.onKeyChange()
		}
	}
}
