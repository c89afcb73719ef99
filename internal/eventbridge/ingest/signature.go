package ingest

import (
	"net/http"
	"strconv"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/webhooksig"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
)

const (
	// signatureWindow is how far a signature's time may be from this process' clock. For so long,
	// an attacker who has recorded a request could send it again. The bus' dedup window drops
	// an event that comes again.
	signatureWindow = 5 * time.Minute
	// maxWebhookID bounds the header webhook-id.
	maxWebhookID = 256
	// tenantParameter is the parameter of the URL that names the tenant of a signed request.
	tenantParameter = "tenant"
)

// signature has the headers of a signed request (Standard Webhooks 1.0). It is checked after the body
// was read.
type signature struct {
	id, timestamp, text string
	signer              *webhooksig.Signer
}

// signed reads the headers of a signed request. Until the signature is valid, the answers do not
// depend on which tenants exist.
func (s *senders) signed(r *http.Request) (sender, error) {
	h := r.Header
	ids, timestamps, signatures := h[webhooksig.IDHeader], h[webhooksig.TimestampHeader], h[webhooksig.SignatureHeader]
	if len(ids) != 1 || len(timestamps) != 1 || len(signatures) != 1 {
		return sender{}, unauthorized("a signature needs one header webhook-id, one webhook-timestamp and one webhook-signature")
	}
	given := &signature{id: ids[0], timestamp: timestamps[0], text: signatures[0]}
	if given.id == "" || len(given.id) > maxWebhookID {
		return sender{}, unauthorized("webhook-id must have 1 to " + strconv.Itoa(maxWebhookID) + " bytes")
	}
	seconds, err := strconv.ParseUint(given.timestamp, 10, 40)
	if err != nil {
		return sender{}, unauthorized("webhook-timestamp must be in seconds since 1970")
	}
	if difference := time.Since(time.Unix(int64(seconds), 0)); difference > signatureWindow || difference < -signatureWindow {
		return sender{}, unauthorized("webhook-timestamp is more than " + signatureWindow.String() + " from now")
	}
	t := s.tenants[r.URL.Query().Get(tenantParameter)]
	if t == nil || t.signer == nil {
		t = s.unknown
	}
	given.signer = t.signer
	return sender{tenant: t, signature: given}, nil
}

// verify checks the signature of a request, if it has one. body is the body as it was sent.
func (s sender) verify(h http.Header, body []byte) error {
	given := s.signature
	if given == nil {
		return nil
	}
	if !given.signer.Verify(given.id, given.timestamp, body, given.text) {
		return unauthorized("the signature is not valid, or the parameter " + tenantParameter + " names another tenant")
	}
	if event.IsBinary(h) {
		return &refusal.Error{
			Status: http.StatusForbidden, Reason: "unsigned_attributes",
			Text: "a signature does not cover attributes in headers: send events in structured or batched mode",
		}
	}
	return nil
}
