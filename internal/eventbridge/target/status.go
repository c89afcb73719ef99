package target

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxRetryAfter bounds the delay that a destination may ask for.
const maxRetryAfter = time.Hour

// judge returns what the status of a webhook's answer means. docs/eventbridge-parts/targets.md has
// this as a table.
//
//	2xx                                     delivered
//	410                                     gone
//	400, 406, 411, 413, 414, 415,
//	417, 422, 431, 508                      refused: the event is the cause
//	429, 502, 503, 504                      retry: the receiver is unavailable
//	3xx                                     retry: redirects are not followed
//	all else                                retry: people can correct the receiver, or the access to it
func judge(answer *http.Response) Result {
	r := Result{Status: answer.StatusCode, Reason: ReasonStatus}
	switch r.Status {
	case http.StatusGone:
		r.Verdict = Gone
	case http.StatusBadRequest, http.StatusNotAcceptable, http.StatusLengthRequired, http.StatusRequestEntityTooLarge,
		http.StatusRequestURITooLong, http.StatusUnsupportedMediaType, http.StatusExpectationFailed, http.StatusUnprocessableEntity,
		http.StatusRequestHeaderFieldsTooLarge, http.StatusLoopDetected:
		r.Verdict = Refused
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		r.Unavailable, r.RetryAfter = true, retryAfter(answer.Header.Get("Retry-After"), time.Now())
	default:
		switch r.Status / 100 {
		case 2:
			return Result{Status: r.Status, Verdict: Delivered}
		case 3:
			r.Reason = ReasonRedirect
		}
	}
	r.Err = fmt.Errorf("the webhook answered %s", strings.TrimSpace(fmt.Sprint(r.Status, " ", http.StatusText(r.Status))))
	if r.Reason == ReasonRedirect {
		r.Err = fmt.Errorf("%w; redirects are not followed", r.Err)
	}
	return r
}

// retryAfter parses the header Retry-After (RFC 9110, section 10.2.3): seconds, or a date. It
// returns the delay from now, at most maxRetryAfter, and 0 if there is none that can be read.
func retryAfter(header string, now time.Time) time.Duration {
	header = strings.TrimSpace(header)
	seconds, err := strconv.ParseUint(header, 10, 32)
	if err == nil || errors.Is(err, strconv.ErrRange) { // a number that is too large is parsed as the largest one
		return min(time.Duration(seconds)*time.Second, maxRetryAfter)
	}
	at, err := http.ParseTime(header)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), maxRetryAfter)
}
