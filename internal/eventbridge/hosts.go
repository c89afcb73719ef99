package eventbridge

import (
	"net"
	"net/http"
	"net/netip"

	"github.com/aviaryhq/aviary/internal/httpserver"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
)

// knownHost refuses events for a Host that an attacker may own, while senders are not
// authenticated: a browser inside the network would send them for a page whose name leads to this
// server.
func (s *service) knownHost(next http.Handler) http.Handler {
	hosts := httpserver.Hosts(s.cfg.HTTP.Hosts)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.senders.Load() && !hosts.Contain(r.Host) {
			refusal.WriteProblem(w, &refusal.Error{Status: http.StatusMisdirectedRequest, Reason: "unknown_host", Text: httpserver.UnknownHost, CloseConnection: true}, nil)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// loopback reports whether only this machine can reach a listen address.
func loopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}
