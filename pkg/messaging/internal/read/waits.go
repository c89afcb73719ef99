package read

import "time"

// waits are delays that tests shorten. They belong to the client.
type waits struct {
	// Ask is how long a partition is silent before it is asked again for its end.
	Ask time.Duration
	// Prompt is how soon a broker that dispatches shows a message.
	Prompt time.Duration
	// Nothing is how long a broker that dispatches shows nothing until there is nothing.
	Nothing time.Duration
	// Quiet is how long a reader's session is quiet until its partition's end is looked at, and
	// quietAtMost how long that becomes where quiet lasts.
	Quiet, quietAtMost time.Duration
	// Unshown is how long Last is shown nothing until it looks further back.
	Unshown time.Duration
	// Discover is the interval of looking for new partitions.
	Discover time.Duration
}

func defaultWaits() waits {
	return waits{
		Ask: time.Second, Prompt: 2 * time.Second, Nothing: 5 * time.Second,
		Quiet: 3 * time.Second, quietAtMost: 5 * time.Minute, Unshown: time.Second, Discover: time.Minute,
	}
}
