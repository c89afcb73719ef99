package messaging

// oneOf reports a fault unless got is one of want.
func oneOf[T ~string](fault func(string, ...any), path string, got T, want ...T) {
	for _, w := range want {
		if got == w {
			return
		}
	}
	fault("%s: must be one of %v, got %q", path, want, string(got))
}
