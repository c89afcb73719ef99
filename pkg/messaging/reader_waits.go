package messaging

import "time"

// waits are delays that tests shorten. They belong to the client.
type waits struct {
	// ask is how long a partition is silent before it is asked again for its end.
	ask time.Duration
	// prompt is how soon a broker that dispatches shows a message.
	prompt time.Duration
	// nothing is how long a broker that dispatches shows nothing until there is nothing.
	nothing time.Duration
	// quiet is how long a reader's session is quiet until its partition's end is looked at, and
	// quietAtMost how long that becomes where quiet lasts.
	quiet, quietAtMost time.Duration
	// unshown is how long Last is shown nothing until that counts as all there is.
	unshown time.Duration
}

func defaultWaits() waits {
	return waits{
		ask: time.Second, prompt: 2 * time.Second, nothing: 5 * time.Second,
		quiet: 3 * time.Second, quietAtMost: 5 * time.Minute, unshown: time.Second,
	}
}
