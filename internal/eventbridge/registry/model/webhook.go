package model

import (
	"net/url"

	"github.com/aviaryhq/aviary/pkg/secret"
)

// The modes of a webhook, those of CloudEvents 1.0 over HTTP.
const (
	ModeBinary     = "binary"
	ModeStructured = "structured"
	ModeBatch      = "batch"
)

// Webhook delivers by HTTP POST. Any 2xx is success.
type Webhook struct {
	URL string `json:"url"`
	// Mode. Default structured. Batch is for OrderNone.
	Mode string `json:"mode,omitempty"`
	// BatchEvents (at most 1,000) and BatchLinger (at most 10s) bound a batch, with ModeBatch only.
	// Defaults 100 and 20ms.
	BatchEvents int      `json:"batch_events,omitempty"`
	BatchLinger Duration `json:"batch_linger,omitempty"`
	// Headers are added to each request.
	Headers map[string]secret.String `json:"headers,omitempty"`
	// SigningSecret signs by Standard Webhooks: whsec_ and base64 (HMAC-SHA256), or whsk_ and
	// base64 (ed25519). Up to four, separated by spaces, sign together while keys change. Optional.
	SigningSecret secret.String `json:"signing_secret,omitempty"`
	// At most one of Bearer and OAuth2 is set.
	Bearer secret.String `json:"bearer,omitempty"`
	OAuth2 *OAuth2       `json:"oauth2,omitempty"`
	TLS    *ClientTLS    `json:"tls,omitempty"`
}

// OAuth2 is the client credentials flow (RFC 6749, section 4.4).
type OAuth2 struct {
	TokenURL     string        `json:"token_url"`
	ClientID     string        `json:"client_id"`
	ClientSecret secret.String `json:"client_secret"`
	Scopes       []string      `json:"scopes,omitempty"`
}

// ClientTLS is a client certificate and the authorities to trust, in PEM.
type ClientTLS struct {
	CA          string        `json:"ca,omitempty"`
	Certificate string        `json:"certificate,omitempty"`
	Key         secret.String `json:"key,omitempty"`
}

func (w *Webhook) validate(s *Subscriber) (f FaultList) {
	f.url("/url", w.URL)
	OneOf(&f, "/mode", w.Mode, ModeBinary, ModeStructured, ModeBatch)
	if w.Mode == ModeBatch {
		if s.Order != OrderNone {
			f.Add("/mode", "must not be batch with order %s: batch needs order none", s.Order)
		}
		if s.Transform != nil {
			f.Add("/mode", "must not be batch with transform: no format holds several transformed events")
		}
		between(&f, "/batch_events", w.BatchEvents, 1, 1000)
		f.lasts("/batch_linger", w.BatchLinger, 0, Duration(10e9))
	} else {
		if w.BatchEvents != 0 {
			f.Add("/batch_events", "is for mode batch only")
		}
		if w.BatchLinger != 0 {
			f.Add("/batch_linger", "is for mode batch only")
		}
	}
	validateHeaders(&f, w)
	f.headerValue("/bearer", w.Bearer)
	if w.Bearer != "" && w.OAuth2 != nil {
		f.Add("/oauth2", "must not be given together with bearer")
	}
	if o := w.OAuth2; o != nil {
		f.url("/oauth2/token_url", o.TokenURL)
		f.needed("/oauth2/client_id", o.ClientID)
		f.needed("/oauth2/client_secret", o.ClientSecret.Reveal())
		if len(o.Scopes) > 100 {
			f.Add("/oauth2/scopes", "must be at most 100, got %d", len(o.Scopes))
		}
	}
	if w.TLS != nil {
		validateClientTLS(&f, w.TLS)
	}
	return f
}

// url checks the address of an HTTP server.
func (f *FaultList) url(at, text string) {
	f.Text(at, text, MaxText)
	u, err := url.Parse(text)
	switch {
	case text == "":
		f.Add(at, "must be given: an address such as https://example.com/events")
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		f.Add(at, "must be an address such as https://example.com/events") // what was given may hold a password
	case u.User != nil:
		f.Add(at, "must not hold a user or a password: use headers, bearer or oauth2")
	case u.Fragment != "":
		f.Add(at, "must not have a fragment (#)")
	}
}

func validateClientTLS(f *FaultList, t *ClientTLS) {
	switch {
	case (t.Certificate == "") == (t.Key == ""):
	case t.Certificate == "":
		f.Add("/tls/certificate", "must be given together with key")
	default:
		f.Add("/tls/key", "must be given together with certificate")
	}
}
