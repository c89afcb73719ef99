package upstream

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// While a slot moves to another primary, or a replica takes over, a Redis Cluster answers commands
// with errors that name the primary to send them to: see "Redis cluster specification", section
// "Redirection and resharding". The proxy follows them, so that clients see none.

// maxRedirects is how often a command goes to another primary at once. Then it waits before each
// further try: the primaries do not agree yet.
const maxRedirects = 5

// Attempts says how a command has followed the cluster so far.
type Attempts struct {
	redirects int       // how often it has gone to another primary at once
	Since     time.Time // when it first had to wait; zero: it has not
}

// MayFollow reports whether the command may go to another primary at once, and counts it.
func (a *Attempts) MayFollow(to Redirection) bool {
	if to.Address == "" || a.redirects >= maxRedirects {
		return false
	}
	a.redirects++
	return true
}

// Redirection is what an error of a Redis Cluster asks for.
type Redirection struct {
	Address string // where to send the command; empty: try it again later
	Asking  bool   // behind ASKING
	Moving  bool   // the error names another primary: clients must not see it
}

// RedirectionOf reads a reply. ok is false if it is none of these errors. from is the primary that
// sent it.
func RedirectionOf(reply []byte, from string) (to Redirection, ok bool) {
	if reply[0] != '-' {
		return to, false
	}
	words := bytes.Fields(resp.Text(reply))
	if len(words) == 0 {
		return to, false
	}
	switch string(words[0]) {
	case "TRYAGAIN", "CLUSTERDOWN", "READONLY": // READONLY: a former primary that is a replica now, to a command without keys
		return to, true
	case "MOVED", "ASK":
		if len(words) != 3 {
			return to, false
		}
		to.Moving, to.Asking = true, string(words[0]) == "ASK"
		colon := bytes.LastIndexByte(words[2], ':')
		if colon < 0 {
			return to, true
		}
		host, port := string(words[2][:colon]), string(words[2][colon+1:]) // an IPv6 address has no brackets
		if host == "" || host == "?" {                                     // the node does not know under which name clients reach it
			host, _, _ = net.SplitHostPort(from)
		}
		to.Address = net.JoinHostPort(host, port)
		return to, true
	default:
		return to, false
	}
}

// IsClusterError reports whether an error is that of a Redis Cluster for a command with keys in a
// slot. A script can return an error of its own that begins in the same way.
func IsClusterError(text string, slot int) bool {
	switch text {
	case "TRYAGAIN Multiple keys request during rehashing of slot", "CLUSTERDOWN Hash slot not served",
		"CLUSTERDOWN The cluster is down", "CLUSTERDOWN The cluster is down and only accepts read commands":
		return true
	}
	return strings.HasPrefix(text, fmt.Sprintf("MOVED %d ", slot)) || strings.HasPrefix(text, fmt.Sprintf("ASK %d ", slot))
}
