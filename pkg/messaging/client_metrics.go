package messaging

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the package's own. Labels are names that a service gives: the profile's for
// publishers, the subscription's for consumers, a reader's own. They are never a topic or a key.
type metrics struct {
	publisher publisherMetrics
	consumer  consumerMetrics
	reader    readerMetrics
}

func newMetrics(reg prometheus.Registerer) *metrics {
	return &metrics{
		publisher: newPublisherMetrics(reg), consumer: newConsumerMetrics(reg), reader: newReaderMetrics(reg),
	}
}

// register registers c, or returns the equal collector that another client
// registered before, so that several clients of a process share one set.
func register[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	err := reg.Register(c)
	var dup prometheus.AlreadyRegisteredError
	if errors.As(err, &dup) {
		if old, ok := dup.ExistingCollector.(C); ok {
			return old
		}
	}
	if err != nil {
		panic(err) // two different metrics of one name: a programming error
	}
	return c
}
