package pigeonhole

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
)

// narrow is a sink that takes stubs only.
type stubOnlySink struct{ lastMessageSink }

func (n *stubOnlySink) Send(ctx context.Context, to string, m *message.Message, done func(error)) {
	if len(m.Value) > 0 {
		done(pipeline.Refuse("too_large", errors.New("too large")))
		return
	}
	n.lastMessageSink.Send(ctx, to, m, done)
}

// TestDeadLetterThatIsRefusedToo: a body that the source does not keep is never given up.
func TestDeadLetterThatIsRefusedToo(t *testing.T) {
	for _, test := range []struct {
		name   string
		offset int64
		stub   bool
	}{
		{"kept at the source", 7, true},
		{"gone once acknowledged", -1, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := leading(t, "b")
			sink := &stubOnlySink{}
			r.deadLetterSink = sink
			m := &message.Message{Key: []byte("k"), Value: []byte("large"), From: message.From{Topic: "a", Partition: -1, Offset: test.offset}}
			outcome := make(chan error, 1)
			r.storeDeadLetter(t.Context(), "b", m, pipeline.Refuse("too_large", errors.New("too large")), func(err error) { outcome <- err })
			err := <-outcome
			if !test.stub {
				_, refused := pipeline.Refused(err)
				assert.True(t, refused, "which stops the route")
				assert.Nil(t, sink.m)
				return
			}
			require.NoError(t, err)
			omitted, _ := sink.m.Header(deadLetterOmitted)
			assert.Equal(t, "value=5 key=1 headers=0", string(omitted))
			assert.Equal(t, "large", string(m.Value))
		})
	}
}
