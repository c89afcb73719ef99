package eventbridge

import (
	"net"
	"net/http"
	"net/netip"

	"github.com/aviaryhq/aviary/internal/door"
)

// knownHost refuses events that come by a name which may be anybody's, while senders are not asked who they are: a browser inside the network would
// send them for any page whose name is made to lead here.
func (s *service) knownHost(next http.Handler) http.Handler {
	hosts := door.Hosts(s.cfg.HTTP.Hosts)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.senders.Load() && !hosts.Know(r.Host) {
			door.WriteProblem(w, &door.Refusal{Status: http.StatusMisdirectedRequest, Reason: "unknown_host", Text: door.UnknownHost, HangUp: true}, nil)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// loopback reports whether only this machine reaches an address to listen at.
func loopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}
