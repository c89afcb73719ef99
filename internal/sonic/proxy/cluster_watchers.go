package proxy

// moveWatchers makes commands that wait for keys wait at the primaries that have them now.
func (l *loop) moveWatchers() {
	moved := map[*blockedCommand]struct{}{}
	for key, w := range l.watchers {
		gone := !l.isPrimary(key.primary)
		for _, all := range w.commands {
			for _, one := range all {
				if gone || l.slots.Owner(one.slot) != key.primary {
					moved[one] = struct{}{}
				}
			}
		}
		if gone {
			delete(l.watchers, key)
			w.b.failAll()
			w.b.discard()
		}
	}
	for one := range moved {
		if !one.ended {
			one.onKeyChange()
		}
	}
}
