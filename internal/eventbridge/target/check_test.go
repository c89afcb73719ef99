package target

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
)

func TestCheck(t *testing.T) {
	h := newHarness(t, func(o *Options) {
		o.Config.Allow, o.Config.Ports = nil, []uint16{80, 443, 8080}
		o.Topics.Namespace = "public/default"
		o.Connections.Kafka = map[string]Kafka{"main": {}, "other": {}}
	})
	hook := func(change func(*model.Webhook)) model.Target {
		w := &model.Webhook{URL: "https://shop.example/x?y=z"}
		change(w)
		return model.Target{Webhook: w}
	}
	url := func(text string) model.Target { return hook(func(w *model.Webhook) { w.URL = text }) }
	pulsar := func(topic string) model.Target {
		return model.Target{Pulsar: &model.PulsarTarget{Topic: topic}}
	}
	for _, test := range []struct {
		name             string
		target           model.Target
		pointer, problem string // none is wrong where both are empty
	}{
		{"a webhook", url("https://shop.example/x?y=z"), "", ""},
		{"another port", url("http://shop.example:8080"), "", ""},
		{"a public address", url("https://8.8.8.8/"), "", ""},
		{"a port that is not allowed", url("https://shop.example:8443/"), "/webhook/url", "at a port"},
		{"port 0", url("https://shop.example:0/"), "/webhook/url", "a port from 1"},
		{"localhost", url("http://LOCALHOST./"), "/webhook/url", "loopback"},
		{"a name below localhost", url("http://a.localhost/"), "/webhook/url", "loopback"},
		{"a private address", url("http://10.0.0.1/"), "/webhook/url", "private"},
		{"a metadata address", url("http://169.254.169.254/latest"), "/webhook/url", "metadata"},
		{"IPv6", url("http://[::ffff:127.0.0.1]/"), "/webhook/url", "loopback"},
		{"a zone", url("http://[fe80::1%25eth0]/"), "/webhook/url", "link-local"},
		{"a key", hook(func(w *model.Webhook) { w.SigningSecret = "hidden" }), "/webhook/signing_secret", "whsec_"},
		{"an authority", hook(func(w *model.Webhook) { w.TLS = &model.ClientTLS{CA: "hidden"} }), "/webhook/tls", "in PEM as ca"},
		{"half a certificate", hook(func(w *model.Webhook) { w.TLS = &model.ClientTLS{Certificate: "hidden"} }), "/webhook/tls", "its private key"},
		{"no pair", hook(func(w *model.Webhook) { w.TLS = &model.ClientTLS{Certificate: "hidden", Key: "hidden"} }), "/webhook/tls", "its private key"},
		{"a token URL", hook(func(w *model.Webhook) { w.OAuth2 = &model.OAuth2{TokenURL: "http://127.0.0.1/"} }), "/webhook/oauth2/token_url", "loopback"},
		{"a topic", pulsar("persistent://public/default/orders"), "", ""},
		{"a topic of ours", pulsar("persistent://public/default/eventbridge-registry"), "/pulsar/topic", "Eventbridge's own"},
		{"a topic of ours by its short name", pulsar("eventbridge-b-events-partition-0"), "/pulsar/topic", "Eventbridge's own"},
		{"a topic of ours without the scheme", pulsar("public/default/eventbridge-b-events"), "/pulsar/topic", "Eventbridge's own"},
		{"a topic of that name elsewhere", pulsar("public/other/eventbridge-b-events"), "", ""},
		{"a cluster", model.Target{Pulsar: &model.PulsarTarget{Topic: "a", Connection: "x"}}, "/pulsar/connection", `got "x"; there is none`},
		{"a connection", model.Target{Kafka: &model.KafkaTarget{Topic: "a", Connection: "x"}}, "/kafka/connection", "known are main, other"},
		{"a connection of RabbitMQ", model.Target{RabbitMQ: &model.RabbitMQTarget{Connection: "main"}}, "/rabbitmq/connection", "there is none"},
		{"the log", model.Target{Log: &model.LogTarget{}}, "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var pointers, problems []string
			for _, fault := range h.Check(&test.target) {
				pointers, problems = append(pointers, fault.Pointer), append(problems, fault.Problem)
			}
			if test.problem == "" {
				assert.Empty(t, problems)
				return
			}
			require.Len(t, problems, 1, "%v", problems)
			assert.Equal(t, test.pointer, pointers[0])
			assert.Contains(t, problems[0], test.problem)
			assert.NotContains(t, problems[0], "hidden")
			_, err := h.New(&model.Subscriber{Target: test.target})
			require.ErrorContains(t, err, test.problem)
		})
	}
}

func TestLog(t *testing.T) {
	core, logged := observer.New(zap.InfoLevel)
	h := newHarness(t, func(o *Options) { o.Log = zap.New(core) })
	target := h.target(&model.Subscriber{Bus: "orders", Name: "audit", Target: model.Target{Log: &model.LogTarget{}}})
	d := h.event("7")
	other := h.event("8")
	other.Body, other.ContentType = make([]byte, 2*maxLogged), "text/plain"
	for _, result := range target.Deliver(context.Background(), []Delivery{d, other}) {
		assert.Equal(t, Delivered, result.Verdict)
	}
	lines := logged.FilterMessage("event").All()
	require.Len(t, lines, 2)
	fields := lines[0].ContextMap()
	assert.Equal(t, "7", fields["id"])
	assert.Equal(t, "audit", fields["subscriber"])
	assert.JSONEq(t, string(d.Event.JSON), fields["event"].(string))
	assert.Len(t, lines[1].ContextMap()["event"], maxLogged)
}

// TestTargetsShareAndGiveBack: sinks of one destination are shared, and there while
// somebody uses them.
func TestTargetsShareAndGiveBack(t *testing.T) {
	h := newHarness(t, func(o *Options) {
		var k Kafka
		k.SetDefaults()
		k.Brokers = []string{"127.0.0.1:1"}
		o.Connections.Kafka = map[string]Kafka{"main": k}
	})
	open := func(to model.Target) Target {
		target, err := h.New(&model.Subscriber{Target: to})
		require.NoError(t, err)
		return target
	}
	topic := func(name string) model.Target {
		return model.Target{Kafka: &model.KafkaTarget{Connection: "main", Topic: name}}
	}
	all := []Target{open(topic("a")), open(topic("a")), open(topic("b"))}
	assert.Len(t, h.sinks, 2)
	for _, target := range all {
		require.NoError(t, target.Close(context.Background()))
		require.NoError(t, target.Close(context.Background()))
	}
	assert.Empty(t, h.sinks)
	left := open(topic("c")) // ended by the factory
	require.NoError(t, h.Close(context.Background()))
	_, err := h.New(&model.Subscriber{Target: topic("a")})
	require.ErrorContains(t, err, "the targets are closed")
	require.NoError(t, left.Close(context.Background()))
}
