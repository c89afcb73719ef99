package pigeonhole

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/internal/connector/pulsar"
	"github.com/aviaryhq/aviary/internal/health"
	"github.com/aviaryhq/aviary/internal/pigeonhole/transform"
)

// kept is a sink of Pulsar that keeps the last message.
type lastMessageSink struct{ m *message.Message }

func (k *lastMessageSink) Send(_ context.Context, _ string, m *message.Message, done func(error)) {
	k.m = m
	done(nil)
}
func (*lastMessageSink) Run(context.Context) error { return nil }

func (*lastMessageSink) PlaceName(to string) string { return message.PlaceName("pulsar", "main", to) }

// leading makes a route to a topic, without source and pipelines.
func leading(t *testing.T, to string) *route {
	t.Helper()
	rc := RouteConfig{Config: transform.Config{To: to}, DeadLetter: DeadLetter{To: "dead"}}
	changes, err := transform.New(rc.Config, pulsar.DefaultSinkConfig().NameRules())
	require.NoError(t, err)
	return &route{
		cfg: rc, log: zap.NewNop(), transform: changes, sink: &lastMessageSink{}, deadLetterSink: &lastMessageSink{},
		health: map[string]*health.State{},
	}
}

// at is m as a source reads it from a topic after a route has stored it there.
func at(topic string, m *message.Message) *message.Message {
	key, payload, properties := m.Pulsar()
	read := message.FromPulsar(key, payload, properties, m.Time)
	read.From = message.From{System: "pulsar", Cluster: "main", Topic: "persistent://public/default/" + topic, Partition: -1, Offset: -1}
	read.SetOrigin("1:2:3:4")
	return read
}

// through is what a route makes of m: the same, or nil for what it drops as a loop.
func through(t *testing.T, r *route, m *message.Message) *message.Message {
	t.Helper()
	prepare, _ := r.newPrepare()
	_, keep, err := prepare(t.Context(), m)
	if errors.Is(err, pipeline.ErrLoop) {
		return nil
	}
	require.NoError(t, err)
	require.True(t, keep)
	return m
}

func fresh() *message.Message { return &message.Message{Key: []byte("k"), Value: []byte("v")} }

// TestRoutesInARow of one process, and what a stream application copies with all headers from one
// topic to the next.
func TestRoutesInARow(t *testing.T) {
	m := fresh()
	for _, hop := range [][2]string{{"a", "b"}, {"b", "c"}, {"c", "d"}} {
		m = through(t, leading(t, hop[1]), at(hop[0], m))
		require.NotNil(t, m, "%v", hop)
	}
	copied := through(t, leading(t, "far"), at("output", m))
	require.NotNil(t, copied)
	assert.Equal(t, []string{"pulsar;main;a", "pulsar;main;b", "pulsar;main;c"}, copied.Hops)
	assert.Equal(t, "persistent://public/default/a", copied.Origin.Topic)
}

// TestCirclesAreCut wherever they close, and whether the destination is fixed or the message's.
func TestCirclesAreCut(t *testing.T) {
	for name, to := range map[string]func(topic string) string{
		"fixed":         func(topic string) string { return topic },
		"full name":     func(topic string) string { return "persistent://public/default/" + topic },
		"the message's": func(topic string) string { return "{header.none:-" + topic + "}" },
	} {
		t.Run(name, func(t *testing.T) {
			there := through(t, leading(t, to("b")), at("a", fresh()))
			assert.Nil(t, through(t, leading(t, to("a")), at("b", there)), "both ways")
			further := through(t, leading(t, to("c")), at("b", there))
			assert.Nil(t, through(t, leading(t, to("a")), at("c", further)))
			assert.Nil(t, through(t, leading(t, to("b")), at("c", further)))
		})
	}
}

// TestDeadLettersCanBePutBack to where they were to go, and to where they were taken from; then
// they go on as others do.
func TestDeadLettersCanBePutBack(t *testing.T) {
	r := leading(t, "b")
	m := through(t, r, at("a", fresh()))
	r.storeDeadLetter(t.Context(), "b", m, pipeline.Refuse("unroutable", errors.New("no queue")), func(err error) { require.NoError(t, err) })
	deadLetters, ok := r.deadLetterSink.(*lastMessageSink)
	require.True(t, ok)
	assert.Equal(t, "persistent://public/default/a", at("dead", deadLetters.m).Origin.Topic)

	assert.NotNil(t, through(t, leading(t, "b"), at("dead", deadLetters.m)))
	back := through(t, leading(t, "a"), at("dead", deadLetters.m))
	require.NotNil(t, back)
	on := through(t, leading(t, "b"), at("a", back))
	require.NotNil(t, on)
	assert.Nil(t, through(t, leading(t, "a"), at("b", on)))
}

// TestHopsHaveALimit that counts routes.
func TestHopsHaveALimit(t *testing.T) {
	r := leading(t, "b")
	m := fresh()
	for i := range maxHops {
		m = through(t, r, at(fmt.Sprint("a", i), m))
		m.Hops = slices.DeleteFunc(m.Hops, func(hop string) bool { return strings.HasSuffix(hop, ";b") }) // as behind an exchange
	}
	prepare, _ := r.newPrepare()
	_, _, err := prepare(t.Context(), at("c", m))
	require.ErrorIs(t, err, message.ErrHops)
	reason, refused := pipeline.Refused(err)
	assert.True(t, refused)
	assert.Equal(t, "hops", reason)
}
