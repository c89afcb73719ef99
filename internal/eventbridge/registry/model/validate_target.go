package model

import (
	"net/url"
	"reflect"
	"strings"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// validateTarget returns what is wrong with the target of s, by pointers below it.
func validateTarget(s *Subscriber, checks Checks) (f FaultList) {
	t := &s.Target
	n := 0
	for _, set := range []bool{t.Webhook != nil, t.Pulsar != nil, t.Kafka != nil, t.RabbitMQ != nil, t.Log != nil} {
		if set {
			n++
		}
	}
	if n != 1 {
		f.Add("", "must have exactly one of webhook, pulsar, kafka, rabbitmq and log, got %d", n)
	}
	if t.Webhook != nil {
		f.below("/webhook", validateWebhook(t.Webhook, s))
	}
	if p := t.Pulsar; p != nil {
		if !messaging.ValidTopic(p.Topic) {
			f.Add("/pulsar/topic", "must be the name of a topic such as persistent://public/default/orders, got %s", Quote(p.Topic))
		}
		f.Text("/pulsar/topic", p.Topic, MaxText)
		f.Text("/pulsar/connection", p.Connection, MaxText)
	}
	if k := t.Kafka; k != nil {
		f.needed("/kafka/connection", k.Connection)
		if valid := strings.Trim(k.Topic, kafkaLetters) == "" && k.Topic != "." && k.Topic != ".."; k.Topic == "" || len(k.Topic) > 249 || !valid {
			f.Add("/kafka/topic", "must be 1 to 249 of a-z, A-Z, 0-9, ., _ and -, got %s", Quote(k.Topic))
		}
	}
	if r := t.RabbitMQ; r != nil {
		f.needed("/rabbitmq/connection", r.Connection)
		f.Text("/rabbitmq/exchange", r.Exchange, 255)
		f.Text("/rabbitmq/routing_key", r.RoutingKey, 255)
		if r.Exchange == "" && r.RoutingKey == "" {
			f.Add("/rabbitmq/exchange", "must be given, or else routing_key, which is a queue then")
		}
	}
	if len(f) == 0 && checks.Target != nil && !holdsHidden(t) {
		f.below("", checks.Target(t))
	}
	return f
}

const kafkaLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

func validateWebhook(w *Webhook, s *Subscriber) (f FaultList) {
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

// holdsHidden reports whether a target has a hidden secret: it is not known then which secret is
// stored.
func holdsHidden(t *Target) (found bool) {
	EachSecret(reflect.ValueOf(t).Elem(), "", func(_ string, s secret.String) secret.String {
		found = found || hidden(s)
		return s
	})
	return found
}

// hidden reports whether a secret is a hidden one.
func hidden(s secret.String) bool { return s.Reveal() == HiddenSecret }
