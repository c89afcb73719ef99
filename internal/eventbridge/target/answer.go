package target

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/truncate"
)

// maxRetryAfter bounds the delay that a destination may ask for.
const maxRetryAfter = time.Hour

// judge returns what the status of a webhook's answer means, as the table in
// docs/eventbridge-parts/targets.md says. A status that is not in it is another attempt: people can
// correct the receiver, or the access to it.
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
	text := strings.TrimSpace(fmt.Sprintf("the webhook answered %d %s", r.Status, http.StatusText(r.Status)))
	if r.Reason == ReasonRedirect {
		text += "; redirects are not followed"
	}
	r.Err = errors.New(text)
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

const (
	// responseKept is how much of an answer's body is kept for people.
	responseKept = 1 << 10
	// responseSeen is how much of the body is read for that. responseRead bounds what is read in
	// all, so that the connection can be used again.
	responseSeen = 4 << 10
	responseRead = 64 << 10
	// responseTime bounds the wait for the body. The status has already decided the result.
	responseTime = time.Second
)

// readAnswer reads the body and closes it. With keep it returns the beginning as text. If the body
// is too long or too slow, the connection is not used again. giveUp cancels the request.
func (w *webhook) readAnswer(answer *http.Response, keep bool, giveUp func(), token string) string {
	defer func() { _ = answer.Body.Close() }()
	if answer.ContentLength == 0 || answer.StatusCode == http.StatusSwitchingProtocols {
		return ""
	}
	timer := time.AfterFunc(responseTime, giveUp)
	defer timer.Stop()
	if !keep {
		_, _ = io.CopyN(io.Discard, answer.Body, responseRead)
		return ""
	}
	buffer := make([]byte, responseSeen)
	n, err := io.ReadFull(answer.Body, buffer)
	secrets := w.secrets.with(token)
	text := secrets.redact(printable(string(buffer[:n])))
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		// There is more, and the end of the text may be the beginning of a secret.
		text = text[:max(len(text)-secrets.longest()+1, 0)]
	}
	_, _ = io.CopyN(io.Discard, answer.Body, int64(responseRead-n))
	return strings.Clone(truncate.Prefix(text, responseKept)) // a part would keep the whole in memory
}
