package request

import (
	"github.com/aviaryhq/aviary/internal/sonic/proxy/state"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// StateKeyError is the error for a command that names a state key or a channel of Sonic.
const StateKeyError = "NOPERM keys and shard channels that begin with {sonic: belong to Sonic"

// ChannelError returns the error for SPUBLISH or SSUBSCRIBE with a channel of Sonic, or "". With
// outbox off, Redis sends effects to the shipper on such a channel.
func ChannelError(r Request) string {
	last := r.Len()
	if resp.EqualFold(r.Arg(0), "spublish") {
		last = min(last, 2) // the message may be anything
	}
	for i := 1; i < last; i++ {
		if state.IsKey(r.Arg(i)) {
			return StateKeyError
		}
	}
	return ""
}
