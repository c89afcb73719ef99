package registry

import (
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// validateTarget returns what is wrong with the target of s, by pointers below it.
func validateTarget(s *Subscriber, checks Checks) (f faults) {
	t := &s.Target
	n := 0
	for _, set := range []bool{t.Webhook != nil, t.Pulsar != nil, t.Kafka != nil, t.RabbitMQ != nil, t.Redis != nil, t.Log != nil} {
		if set {
			n++
		}
	}
	if n != 1 {
		f.add("", "must have exactly one of webhook, pulsar, kafka, rabbitmq, redis and log, got %d", n)
	}
	if t.Webhook != nil {
		f.below("/webhook", validateWebhook(t.Webhook, s.Order))
	}
	if p := t.Pulsar; p != nil {
		if !messaging.ValidTopic(p.Topic) {
			f.add("/pulsar/topic", "must be the name of a topic such as persistent://public/default/orders, got %s", quote(p.Topic))
		}
		f.text("/pulsar/topic", p.Topic, maxText)
		f.text("/pulsar/connection", p.Connection, maxText)
	}
	if k := t.Kafka; k != nil {
		f.needed("/kafka/connection", k.Connection)
		if valid := strings.Trim(k.Topic, kafkaLetters) == "" && k.Topic != "." && k.Topic != ".."; k.Topic == "" || len(k.Topic) > 249 || !valid {
			f.add("/kafka/topic", "must be 1 to 249 of a-z, A-Z, 0-9, ., _ and -, got %s", quote(k.Topic))
		}
	}
	if r := t.RabbitMQ; r != nil {
		f.needed("/rabbitmq/connection", r.Connection)
		f.text("/rabbitmq/exchange", r.Exchange, 255)
		f.text("/rabbitmq/routing_key", r.RoutingKey, 255)
		if r.Exchange == "" && r.RoutingKey == "" {
			f.add("/rabbitmq/exchange", "must be given, or else routing_key, which is a queue then")
		}
	}
	if r := t.Redis; r != nil {
		f.needed("/redis/connection", r.Connection)
		f.needed("/redis/stream", r.Stream)
		if r.MaxLen < 0 {
			f.add("/redis/max_len", "must be 0 or more, got %d", r.MaxLen)
		}
	}
	if len(f) == 0 && checks.Target != nil && !holdsHidden(t) {
		f.below("", checks.Target(t))
	}
	return f
}

const kafkaLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

func validateWebhook(w *Webhook, order Order) (f faults) {
	f.url("/url", w.URL)
	oneOf(&f, "/mode", w.Mode, ModeBinary, ModeStructured, ModeBatch)
	if w.Mode == ModeBatch {
		if order != OrderNone && order != OrderLive {
			f.add("/mode", "must not be batch with order %s: it is for none and live", order)
		}
		between(&f, "/batch_events", w.BatchEvents, 1, 1000)
		f.lasts("/batch_linger", w.BatchLinger, 0, Duration(10e9))
	} else {
		if w.BatchEvents != 0 {
			f.add("/batch_events", "is for mode batch only")
		}
		if w.BatchLinger != 0 {
			f.add("/batch_linger", "is for mode batch only")
		}
	}
	validateHeaders(&f, w)
	if !httpguts.ValidHeaderFieldValue(w.Bearer.Reveal()) {
		f.add("/bearer", "must not hold line breaks or other control characters")
	}
	if w.Bearer != "" && w.OAuth2 != nil {
		f.add("/oauth2", "must not be given together with bearer")
	}
	if o := w.OAuth2; o != nil {
		f.url("/oauth2/token_url", o.TokenURL)
		f.needed("/oauth2/client_id", o.ClientID)
		f.needed("/oauth2/client_secret", o.ClientSecret.Reveal())
		if len(o.Scopes) > 100 {
			f.add("/oauth2/scopes", "must be at most 100, got %d", len(o.Scopes))
		}
	}
	if w.TLS != nil {
		validateClientTLS(&f, w.TLS)
	}
	return f
}

// url checks the address of an HTTP server.
func (f *faults) url(at, text string) {
	f.text(at, text, maxText)
	u, err := url.Parse(text)
	switch {
	case text == "":
		f.add(at, "must be given: an address such as https://example.com/events")
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		f.add(at, "must be an address such as https://example.com/events") // what was given may hold a password
	case u.User != nil:
		f.add(at, "must not hold a user or a password: use headers, bearer or oauth2")
	case u.Fragment != "":
		f.add(at, "must not have a fragment (#)")
	}
}

const maxHeaders = 32

func validateHeaders(f *faults, w *Webhook) {
	if len(w.Headers) > maxHeaders {
		f.add("/headers", "must be at most %d, got %d", maxHeaders, len(w.Headers))
	}
	seen := make(map[string]bool)
	for _, name := range slices.Sorted(maps.Keys(w.Headers)) {
		at, lower := "/headers"+step(name), strings.ToLower(name)
		switch {
		case !httpguts.ValidHeaderFieldName(name):
			f.add(at, "the key must be the name of an HTTP header, got %s", quote(name))
		case strings.HasPrefix(lower, "ce-"), strings.HasPrefix(lower, "webhook-"), slices.Contains(ownHeaders(), lower):
			f.add(at, "Eventbridge sets this header itself")
		case lower == "authorization" && (w.Bearer != "" || w.OAuth2 != nil):
			f.add(at, "must not be given together with bearer or oauth2")
		case seen[lower]:
			f.add(at, "the header is there twice, in another case")
		}
		seen[lower] = true
		if !httpguts.ValidHeaderFieldValue(w.Headers[name].Reveal()) {
			f.add(at, "must not hold line breaks or other control characters")
		}
	}
}

// ownHeaders are those of HTTP itself and of what is delivered.
func ownHeaders() []string {
	return []string{"host", "content-type", "content-length", "transfer-encoding", "connection", "trailer", "te", "upgrade", "traceparent", "tracestate"}
}

func validateClientTLS(f *faults, t *ClientTLS) {
	switch {
	case (t.Certificate == "") == (t.Key == ""):
	case t.Certificate == "":
		f.add("/tls/certificate", "must be given together with key")
	default:
		f.add("/tls/key", "must be given together with certificate")
	}
}

// holdsHidden reports whether a hidden secret is among those of a target: it is not known then what is stored in its place.
func holdsHidden(t *Target) (found bool) {
	eachSecret(reflect.ValueOf(t).Elem(), "", func(_ string, s secret.String) secret.String {
		found = found || hidden(s)
		return s
	})
	return found
}

// hidden reports whether a secret is what stands for one in answers.
func hidden(s secret.String) bool { return s.Reveal() == HiddenSecret }
