package rabbitmq

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestStreamGoesOnWhereItBegan: what was delivered and not committed comes again on the next
// channel, before the first commit, too. An offset such as next would mean what is stored from
// then on.
func TestStreamGoesOnWhereItBegan(t *testing.T) {
	consumer := &queueConsumer{queue: Queue{Name: "q", Type: typeStream, Offset: "next"}}
	from := func() any { return consumer.arguments()[headerStreamOffset] }
	assert.Equal(t, "next", from())
	assert.Equal(t, "next", from(), "there was no consumer")
	began := time.Now()
	consumer.position.started(began)
	consumer.position.started(began.Add(time.Hour))
	assert.Equal(t, began.Add(-clockSkew), from(), "nothing was delivered")
	consumer.position.delivered(1, 1042)
	consumer.position.delivered(2, 1043)
	assert.Equal(t, int64(1042), from())
	consumer.position.delivered(1, 1042)
	consumer.position.delivered(2, 1043)
	consumer.position.committed(1)
	assert.Equal(t, int64(1043), from())
}
