// Package senders sends loads to services and proxies: remote write, events and Redis commands. Of
// test/bench it imports only measure.
package senders

import (
	"context"
	"time"

	"github.com/aviaryhq/aviary/test/bench/measure"
)

// Load says what a sender sends.
type Load struct {
	// Send prepares, calls Start of the meter, sends, and calls Stop: a function of this package.
	Send    func(context.Context, Load, *measure.Meter) error
	URL     string  // of Redis: host:port
	FarURL  string  // host:port of the Redis to which writes are replicated
	Callers int     // connections
	Count   int     // messages; of remote write: requests of each connection
	Seconds float64 // the maximum time; without a count the time
	Rate    int     // messages per second; 0: as many as possible
	Batch   int     // events in a request, or commands in a pipeline; 0: 1
	First   int     // the number of the first event
	Command string  // of Redis
	Remote  Remote  // the requests of remote write
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
