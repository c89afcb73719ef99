package nightingale

import "net/http"

// maxHeaderBytes bounds a request's header. Past it (and a little more, net/http's
// own allowance): 431.
const maxHeaderBytes = 64 << 10

func newServer(h http.Handler, l Limits) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: l.ReadTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
	}
}
