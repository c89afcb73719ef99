package replies

import (
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// IsMessage reports whether a push is a Pub/Sub message.
func IsMessage(push []byte) bool {
	switch string(resp.FirstWord(push)) {
	case "message", "pmessage", "smessage":
		return true
	}
	return false
}
